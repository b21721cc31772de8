//! All URLs of a table in a row.

use std::fs::File;
use std::io::{BufReader, Read};

use super::MetadataError;
use super::files::{at, corrupt};
use super::urls::{URL_BYTES_MAX, UrlTable};

impl UrlTable {
    /// Calls `each` with every id and its URL, in order, by one sequential pass.
    ///
    /// # Errors
    /// A disk that cannot, damage, or what `each` says.
    pub fn for_urls<E: From<MetadataError>>(
        &self,
        mut each: impl FnMut(u32, &str) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let path = self.folder.join("urls");
        let file = at(&path, File::open(&path))?;
        let mut file = BufReader::with_capacity(1 << 18, file.take(self.urls_bytes));
        let (mut url, mut offset) = (Vec::new(), 0);
        for id in 0..self.count {
            let mut length = [0; 4];
            at(&path, file.read_exact(&mut length))?;
            let length = u32::from_le_bytes(length) as usize;
            if length > URL_BYTES_MAX {
                return Ok(corrupt(&path, offset, "a URL is longer than URLs can be")?);
            }
            url.resize(length, 0);
            at(&path, file.read_exact(&mut url))?;
            match std::str::from_utf8(&url) {
                Ok(url) => each(id, url)?,
                Err(_) => return Ok(corrupt(&path, offset, "a URL is no text")?),
            }
            offset += 4 + length as u64;
        }
        Ok(())
    }
}
