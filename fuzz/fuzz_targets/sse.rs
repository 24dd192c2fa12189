//! See `homing_fuzz::sse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homing_fuzz::sse(data));
