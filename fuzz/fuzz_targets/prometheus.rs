//! See `homing_fuzz::prometheus`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homing_fuzz::prometheus(data));
