//! Hedged requests for [tower](https://docs.rs/tower) services.
