//! Puts the sources of the CUDA kernels where maturin takes them from: a wheel brings them along.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

const KERNELS: &str = "../../reference_kernels";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={KERNELS}");
    let missing = || io::Error::new(io::ErrorKind::NotFound, "cargo names no OUT_DIR");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(missing)?).join("reference_kernels");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(KERNELS))? {
        let path = entry?.path();
        let is_source = path
            .extension()
            .is_some_and(|extension| extension == "cu" || extension == "cuh");
        if let (true, Some(name)) = (is_source, path.file_name()) {
            fs::copy(&path, out.join(name))?;
        }
    }
    Ok(())
}
