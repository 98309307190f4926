//! From SVG to PNG, with the font that the program carries, so that machines without fonts show text too.

use anyhow::{Context as _, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};
use std::sync::{Arc, LazyLock};

/// Pixels of the PNG for each of the SVG, for sharp text on dense screens and in print.
const SCALE: f32 = 2.0;

static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(ttf_noto_sans::REGULAR.to_vec());
    fonts.load_font_data(ttf_noto_sans::BOLD.to_vec());
    Arc::new(fonts)
});

/// The picture as PNG.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>> {
    let options = Options { fontdb: Arc::clone(&FONTS), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("a plot is no SVG")?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("a plot has no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("a plot is too large")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("a plot cannot be encoded as PNG")
}
