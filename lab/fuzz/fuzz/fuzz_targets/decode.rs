//! Any bytes through every decoder, chosen by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hedgerow_fuzz::decode_anything(data));
