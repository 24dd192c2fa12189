//! See `homing_fuzz::body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homing_fuzz::body(data));
