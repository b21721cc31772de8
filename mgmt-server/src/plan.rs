//! What clients are told: which nodes for which ranges. Pages never pass through the management server.

use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{AddPlan, LIVE, Lease, ReadPlan};

use crate::coordinator::{Coordinator, Refusal};

impl Coordinator {
    /// Where to add pages now.
    pub fn add_plan(&self) -> AddPlan {
        let side = &self.state.placement.update;
        let up = |n: &NodeId| self.state.nodes.get(n).is_some_and(|e| !e.down && !e.leaving);
        let takers = |range| match self.state.live {
            Some(_) => self.state.takers(range),
            None => side.owners(range).iter().copied().filter(up).collect(),
        };
        let ranges = (0..self.state.placement.map.count()).map(takers).collect();
        AddPlan { version: self.state.plan_version, stamp: self.state.last_cycle, ranges }
    }

    /// Where to read now.
    pub fn read_plan(&self) -> ReadPlan {
        match self.state.live {
            Some(_) => self.live_plan(),
            None => self.plan_of(self.state.serving),
        }
    }

    /// Where to read pages as they are now: at nodes that have all of them, and know it.
    fn live_plan(&self) -> ReadPlan {
        let mut ranges = vec![Vec::new(); self.state.placement.map.count() as usize];
        let mut behind = ranges.clone();
        for (node, whole) in &self.whole {
            let Some(view) = self.live(*node) else { continue };
            let Some(read) = &view.read else { continue };
            // Who has not moved to the serving generation still shows what that one removed: only if nobody else can.
            let list = if read.current >= self.state.serving { &mut ranges } else { &mut behind };
            for range in whole.intersection(&read.live).iter().filter(|r| view.has(read.current, *r)) {
                if let Some(nodes) = list.get_mut(range as usize) {
                    nodes.push(*node);
                }
            }
        }
        for (nodes, behind) in ranges.iter_mut().zip(behind) {
            if nodes.is_empty() {
                *nodes = behind;
            }
        }
        ReadPlan { version: self.state.plan_version, generation: LIVE, ranges, busy: self.busy() }
    }

    fn busy(&self) -> Vec<NodeId> {
        let up = |(node, view): (&NodeId, &crate::View)| {
            (view.read.is_some() && self.is_live(*node)).then_some(*node)
        };
        self.loads.busy(&self.views.iter().filter_map(up).collect::<Vec<_>>())
    }

    fn plan_of(&self, generation: u64) -> ReadPlan {
        let mut ranges = vec![Vec::new(); self.state.placement.map.count() as usize];
        for (node, view) in self.views.iter().filter(|(node, _)| self.is_live(**node)) {
            let Some(read) = &view.read else { continue };
            let owned = self.holdings.get(node).map(|h| &h.owned);
            let kept = read.kept.iter().find(|(g, _)| *g == generation).map(|(_, ranges)| ranges);
            // Generation 0 is empty: its owners have it.
            let has = if generation == 0 { owned } else { kept.filter(|_| generation <= read.current) };
            for range in has.into_iter().flat_map(|r| r.iter()) {
                if let Some(nodes) = ranges.get_mut(range as usize) {
                    nodes.push(*node);
                }
            }
        }
        ReadPlan { version: self.state.plan_version, generation, ranges, busy: self.busy() }
    }

    /// A lease on the generation that plans name now, with its plan.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open_lease(&mut self, now_ms: u64) -> Result<(Lease, ReadPlan), Refusal> {
        let generation = if self.state.live.is_some() { LIVE } else { self.state.serving };
        self.lease_on(now_ms, generation)
    }

    /// A lease on a generation that is kept, with its plan.
    ///
    /// # Errors
    /// When it is gone or has to go, or there are too many leases.
    pub fn lease_on(&mut self, now_ms: u64, generation: u64) -> Result<(Lease, ReadPlan), Refusal> {
        if self.state.live.is_some() && generation == LIVE {
            return Ok(self.nothing_held());
        }
        if !self.is_kept(generation) || self.is_wanted_back(generation) {
            return Err(Refusal::NotKept { generation });
        }
        let id = self.leases.open(now_ms, generation).ok_or(Refusal::TooMany { max: crate::LEASES_MAX })?;
        Ok((Lease { id, generation, period_ms: self.leases.period_ms() }, self.plan_of(generation)))
    }

    /// Goes on with a lease, and gives a new plan for its generation.
    ///
    /// # Errors
    /// When the generation is gone, or has to go because two younger old ones are held, too.
    pub fn renew_lease(
        &mut self,
        now_ms: u64,
        id: u64,
        generation: u64,
    ) -> Result<(Lease, ReadPlan), Refusal> {
        if self.state.live.is_some() && generation == LIVE {
            return Ok(self.nothing_held());
        }
        if !self.is_kept(generation) || self.is_wanted_back(generation) {
            return Err(Refusal::NotKept { generation });
        }
        if !self.leases.renew(now_ms, id, generation) {
            return Err(Refusal::TooMany { max: crate::LEASES_MAX });
        }
        Ok((Lease { id, generation, period_ms: self.leases.period_ms() }, self.plan_of(generation)))
    }

    /// Live pages need no lease: it has only a plan, and the time after which a new one is asked for.
    fn nothing_held(&self) -> (Lease, ReadPlan) {
        (Lease { id: 0, generation: LIVE, period_ms: self.leases.period_ms() }, self.live_plan())
    }

    /// Ends a lease.
    pub fn end_lease(&mut self, id: u64) {
        self.leases.end(id);
    }

    /// Whether a generation is kept, and no decision to let it go is on its way.
    pub(crate) fn is_kept(&self, generation: u64) -> bool {
        self.state.kept.contains(&generation)
            && self.pending_state().is_none_or(|next| next.kept.contains(&generation))
    }
}
