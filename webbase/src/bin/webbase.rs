//! The program. All of it is in the library, so that nothing is compiled twice.

use std::process::ExitCode;

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    webbase::main()
}
