//! A round of both at once.

use super::super::kernel::both_ways;
use super::super::power::Sums;
use super::super::usefulness::Change;
use super::vector::Vector;
use super::{OnDisk, Result, Scan, TILE};
use crate::link_matrix::{BLOCK_BYTES, Buffer, MatrixError, Reader, Request};

impl OnDisk {
    /// Importance and usefulness in one scan: rows resident, sums of columns go by.
    pub(super) fn both_round(&mut self) -> Result<f64> {
        let tile_bytes = TILE * BLOCK_BYTES as usize;
        let (tiles, group) = (self.matrix.tiles(), self.group(2, 2 * tile_bytes));
        // Where memory is for one tile alone, one piece of a vector has to do as well.
        let ahead = if group == 1 { 1 } else { 2 };
        let so_far = Vector::create(&*self.disk, &self.dir.join("sums"))?;
        let factors = self.factors(Scan::Power);
        let (mut sums, mut change) = (Sums::default(), Change::default());
        let resident = group.min(tiles.max(1)) * TILE;
        let (mut passing, mut got_back) = (Buffer::for_blocks(resident), Buffer::for_blocks(resident));
        let mut got = Buffer::for_blocks(TILE);
        for first in (0..tiles).step_by(group) {
            let rows = first..tiles.min(first + group);
            got_back.bytes_mut().fill(0);
            let of_rows = passing.bytes_mut().get_mut(..rows.len() * tile_bytes).unwrap_or_default();
            let read = self.passing.file.read_exact_at(of_rows, (first * tile_bytes) as u64);
            read.map_err(|e| MatrixError::io("read", self.passing.file.path(), e))?;
            let (matrix, useful, of_group) = (self.matrix.clone(), self.useful.file.clone(), rows.clone());
            let requests = (0..tiles).flat_map(move |column| {
                let values = Request::Vector { file: useful.clone(), first: column * TILE, count: TILE };
                let matrix = matrix.clone();
                let frames = of_group
                    .clone()
                    .map(move |row| Request::Frames(matrix.tile_row(row, column..column + 1)));
                std::iter::once(values).chain(frames)
            });
            let [mut reader] = Reader::start(&self.matrix, (ahead, TILE), requests);
            for column in 0..tiles {
                let useful = reader.vector()?;
                match first {
                    0 => got.bytes_mut().fill(0),
                    _ => {
                        let read = so_far.file.read_exact_at(got.bytes_mut(), (column * tile_bytes) as u64);
                        read.map_err(|e| MatrixError::io("read", so_far.file.path(), e))?;
                    }
                }
                for row in rows.clone() {
                    let (got, back) = (got.blocks_mut(), got_back.blocks_mut());
                    reader.frames(|frame| {
                        let from = usize::from(frame.from) - first * TILE;
                        let to = usize::from(frame.to) - column * TILE;
                        if let (Some(passing), Some(back), Some(useful), Some(got)) = (
                            passing.blocks().get(from),
                            back.get_mut(from),
                            useful.blocks().get(to),
                            got.get_mut(to),
                        ) {
                            both_ways(frame.positions, (passing, back), (useful, got));
                        }
                    })?;
                    self.count(0, self.matrix.tile_row(row, column..column + 1));
                }
                reader.give_back(useful);
                self.count(3, 0..0);
                if rows.end == tiles {
                    self.take(column * TILE, got.blocks(), factors, Scan::Power, &mut sums)?;
                } else {
                    let written = so_far.file.write_all_at(got.bytes(), (column * tile_bytes) as u64);
                    written.map_err(|e| MatrixError::io("write", so_far.file.path(), e))?;
                }
            }
            drop(reader);
            let blocks = rows.len() * TILE;
            let got = got_back.blocks().get(..blocks).unwrap_or_default();
            self.take_back(first * TILE, got, Scan::Power, &mut change)?;
        }
        std::mem::swap(&mut self.passing, &mut self.next_passing);
        std::mem::swap(&mut self.useful, &mut self.next_useful);
        self.sums = sums;
        Ok((sums.change / (sums.linked + sums.dangling)).max(change.relative()))
    }
}
