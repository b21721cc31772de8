//! Which addresses a crawler may reach: public ones, and those that were allowed by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which addresses beside the public ones may be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// None.
    #[default]
    Public,
    /// This machine's own (127.0.0.0/8 and ::1).
    Loopback,
    /// All: private networks too.
    Anywhere,
}

impl Reach {
    /// Whether an address may be reached.
    pub fn allows(self, address: IpAddr) -> bool {
        match self {
            Reach::Anywhere => true,
            Reach::Loopback => is_public(address) || plain(address).is_loopback(),
            Reach::Public => is_public(address),
        }
    }
}

/// An IPv4 address that is written as an IPv6 one, as itself.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Whether an address is one of the public internet, by the special-purpose registries of IANA.
pub fn is_public(address: IpAddr) -> bool {
    match plain(address) {
        IpAddr::V4(four) => is_public_v4(four),
        IpAddr::V6(six) => is_public_v6(six),
    }
}

fn is_public_v4(four: Ipv4Addr) -> bool {
    let [a, b, c, _] = four.octets();
    let special = matches!(
        (a, b, c),
        (0 | 10 | 127, ..) // this network, private, loopback
            | (100, 64..=127, _) // shared by carriers
            | (169, 254, _) // link-local
            | (172, 16..=31, _) // private
            | (192, 0, 0 | 2) // protocols, documentation
            | (192, 88, 99) // 6to4 relays
            | (192, 168, _) // private
            | (198, 18..=19, _) // benchmarks
            | (198, 51, 100) // documentation
            | (203, 0, 113) // documentation
            | (224..=255, ..) // multicast, reserved, broadcast
    );
    !special
}

fn is_public_v6(six: Ipv6Addr) -> bool {
    match six.segments() {
        // 6to4 and NAT64 carry an IPv4 address, which then is what counts.
        [0x2002, high, low, ..] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            is_public_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
        }
        [0x2001, 0..=0x1ff, ..] => false, // protocols, Teredo
        [0x2001, 0xdb8, ..] => false,     // documentation
        [0x3fff, 0..=0xfff, ..] => false, // documentation
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "93.184.216.34",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "100.64.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        assert!(Reach::Loopback.allows("127.0.0.1".parse().unwrap()));
        assert!(Reach::Loopback.allows("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!Reach::Loopback.allows("10.0.0.1".parse().unwrap()));
    }
}
