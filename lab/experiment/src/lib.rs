//! Named experiments: variants side by side, repeated, checked, beside the published figures.
