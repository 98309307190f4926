//! How things look: colours, dashes and markers of series, text, and the font.
//!
//! Series must be told apart in grey and by people who do not see all colours: each has a lightness, a dash and a marker
//! of its own. The colours are from the palette of Okabe and Ito, two of them darkened.

use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::sync::Once;

/// Series in one picture; more would not be told apart.
pub(super) const SERIES_MAX: usize = 6;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(34, 34, 34);
/// Remarks.
pub(super) const PALE_INK: RGBColor = RGBColor(95, 95, 95);
/// What warns.
pub(super) const ALARM: RGBColor = RGBColor(176, 0, 32);
/// Lines of the grid at labels.
pub(super) const GRID: RGBColor = RGBColor(205, 205, 205);
/// Lines of the grid between labels.
pub(super) const PALE_GRID: RGBColor = RGBColor(236, 236, 236);
/// Bars.
pub(super) const BAR: RGBColor = RGBColor(143, 188, 219);
/// Around bars.
pub(super) const BAR_EDGE: RGBColor = RGBColor(0, 90, 140);
/// What lies behind the lines while a fault is active.
pub(super) const SHADE: RGBColor = RGBColor(150, 150, 160);

/// Families that a browser tries in turn. The first is the font that the program carries.
pub(super) const FONT: &str = "Noto Sans, Helvetica, Arial, sans-serif";
/// The library's sizes are those of a line; pixels of SVG are those of the font.
const LINE_PER_FONT_SIZE: f64 = 1.24;
/// The library measures text as if the font's size were that of its line, less the line's gap; so much is missing.
const MEASURED_TOO_SMALL: f64 = 1.10;

/// How one series looks.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) colour: RGBColor,
    /// Lengths in pixels of what is drawn and of the gap; `None` for a line without gaps.
    pub(super) dash: Option<(i32, i32)>,
    pub(super) marker: Marker,
}

/// The form of a marker.
#[derive(Clone, Copy)]
pub(super) enum Marker {
    Disc,
    Square,
    Triangle,
    Ring,
    Diamond,
    Cross,
}

const LOOKS: [Look; SERIES_MAX] = [
    Look { colour: RGBColor(20, 20, 20), dash: None, marker: Marker::Disc },
    Look { colour: RGBColor(0, 114, 178), dash: Some((9, 4)), marker: Marker::Square },
    Look { colour: RGBColor(230, 159, 0), dash: None, marker: Marker::Triangle },
    Look { colour: RGBColor(136, 34, 85), dash: Some((3, 3)), marker: Marker::Ring },
    Look { colour: RGBColor(0, 158, 115), dash: Some((16, 5)), marker: Marker::Diamond },
    Look { colour: RGBColor(86, 180, 233), dash: Some((5, 5)), marker: Marker::Cross },
];

/// How the series `index` of a picture looks.
pub(super) fn look(index: usize) -> Look {
    LOOKS[index % LOOKS.len()]
}

/// Text of `size` pixels.
pub(super) fn text(size: f64, colour: RGBColor) -> TextStyle<'static> {
    styled(size, FontStyle::Normal, colour)
}

/// Bold text of `size` pixels.
pub(super) fn bold(size: f64, colour: RGBColor) -> TextStyle<'static> {
    styled(size, FontStyle::Bold, colour)
}

/// The same text, placed otherwise against its point.
pub(super) fn anchored(style: TextStyle<'static>, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    style.pos(Pos::new(horizontal, vertical))
}

/// The width of a text in pixels.
pub(super) fn width(style: &TextStyle<'_>, text: &str) -> i32 {
    let measured = style.font.layout_box(text).map_or(0, |(low, high)| high.0 - low.0);
    (f64::from(measured) * MEASURED_TOO_SMALL).ceil() as i32
}

/// As much of a text as fits into `width_max` pixels, on one line, without characters that XML does not allow.
pub(super) fn fit(style: &TextStyle<'_>, text: &str, width_max: i32) -> String {
    let mut plain: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if width(style, &plain) <= width_max {
        return plain;
    }
    while !plain.is_empty() && width(style, &format!("{plain}…")) > width_max {
        plain.pop();
    }
    format!("{}…", plain.trim_end())
}

fn styled(size: f64, style: FontStyle, colour: RGBColor) -> TextStyle<'static> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // Without the font the layout would be wrong by a few pixels; the embedded bytes are a font, so it is there.
        let _ = register_font(FONT, FontStyle::Normal, ttf_noto_sans::REGULAR);
        let _ = register_font(FONT, FontStyle::Bold, ttf_noto_sans::BOLD);
    });
    let font = FontDesc::new(FontFamily::Name(FONT), size * LINE_PER_FONT_SIZE, style);
    TextStyle { font, color: colour.to_backend_color(), pos: Pos::default() }
}
