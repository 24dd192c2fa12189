//! The `homing` command.

/// The system allocator spends a tenth of a small request's time; this one doesn't, and gives memory back.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    homing::cli::main()
}
