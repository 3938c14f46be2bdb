//! Compiles the shims of the rivals that are system libraries. Does nothing without their features.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rival-leveldb")]
    {
        shim("leveldb.cc", true);
        println!("cargo:rustc-link-lib=leveldb");
    }
    #[cfg(feature = "rival-berkeley-db")]
    {
        shim("berkeley_db.c", false);
        println!("cargo:rustc-link-lib=db-5.3");
    }
    #[cfg(feature = "rival-faster")]
    faster();
}

/// FASTER is headers and four small files.
#[cfg(feature = "rival-faster")]
fn faster() {
    println!("cargo:rerun-if-env-changed=FASTER_SOURCE");
    let source = std::env::var("FASTER_SOURCE").expect(
        "the feature rival-faster needs FASTER_SOURCE, the directory cc/src of FASTER's source: see docs/rivals.md",
    );
    let files = [
        "core/address.cc",
        "core/lss_allocator.cc",
        "core/thread.cc",
        "environment/file_linux.cc",
    ];
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").warnings(false).include(&source);
    build
        .files(files.map(|file| format!("{source}/{file}")))
        .compile("faster");
    shim_with("faster.cc", true, &[&source]);
    for library in ["faster", "stdc++fs", "uuid", "tbb", "aio", "pthread"] {
        println!("cargo:rustc-link-lib={library}");
    }
}

/// The library's own flag must come after this one, so that the linker finds the symbols that the
/// shim uses.
#[cfg(any(feature = "rival-leveldb", feature = "rival-berkeley-db"))]
fn shim(file: &str, is_cpp: bool) {
    shim_with(file, is_cpp, &[]);
}

/// The same with more directories of headers; warnings in these do not count.
#[cfg(any(feature = "rival-leveldb", feature = "rival-berkeley-db", feature = "rival-faster"))]
fn shim_with(file: &str, is_cpp: bool, headers: &[&str]) {
    let directory = "src/rivals/foreign";
    let source = format!("{directory}/{file}");
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed={directory}/rival.h");
    let mut build = cc::Build::new();
    build
        .file(source)
        .include(directory)
        .warnings(true)
        .extra_warnings(true);
    for directory in headers {
        build.flag(format!("-isystem{directory}"));
    }
    if is_cpp {
        build.cpp(true).std("c++17");
    } else {
        // db.h uses type names that strict C lacks.
        build.std("gnu11");
    }
    build.compile(&format!("rival_{}", file.replace('.', "_")));
}
