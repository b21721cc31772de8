//! The shortest useful program: a management server on a port of the system's choosing, and what it says of itself.
//!
//! `cargo run -p webbase-mgmt-server --example mgmt_quickstart -- FOLDER`

use webbase_mgmt_server::{Management, ManagementServer, ServerOptions};
use webbase_node::ClientSettings;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("give a folder")?;
    let server = ManagementServer::start(ServerOptions::new(folder, "127.0.0.1:0".parse()?)).await?;
    println!("listening on {}", server.address());

    let management = Management::connect(server.address(), ClientSettings::default()).await?;
    let repository = management.repository().await?;
    println!("repository {}, {} ranges", repository.repository_key().fingerprint(), repository.map.count());
    let status = management.status().await?;
    println!("generation {}, {} nodes, cycle {:?}", status.serving, status.nodes.len(), status.cycle);
    // It has no nodes yet: a cycle waits for some, so none is started here.
    println!("plans have version {}", management.read_plan().await?.0.version);
    server.shutdown().await?;
    Ok(())
}
