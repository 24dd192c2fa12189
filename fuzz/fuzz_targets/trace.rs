//! See `homing_fuzz::trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homing_fuzz::trace(data));
