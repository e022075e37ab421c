// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"net/netip"

	"cloudnative.tw/drover/internal/machine/control"
)

// Values of Options.Egress.
const (
	EgressAllow = "allow"
	EgressDeny  = "deny"
)

const (
	// maxDenied is how many ranges can be denied. A supervisor gets all of them in one message.
	maxDenied = 1000
	// maxResolvers is how many resolvers a guest's question is sent to, one after another, as in resolv.conf(5).
	maxResolvers = 3
)

// parseEgress returns where guests may connect to.
func (o Options) parseEgress() (e control.Egress, err error) {
	if o.Egress != "" && o.Egress != EgressAllow && o.Egress != EgressDeny {
		err = fmt.Errorf("--qemu-egress is %q: it must be %s or %s", o.Egress, EgressAllow, EgressDeny)
	}
	e.Deny = o.Egress == EgressDeny
	if len(o.EgressDenied) > maxDenied {
		return e, fmt.Errorf("--qemu-egress-denied has %d ranges: it may have %d", len(o.EgressDenied), maxDenied)
	}
	for _, text := range o.EgressDenied {
		prefix, bad := netip.ParsePrefix(text)
		if bad != nil || !prefix.Addr().Is4() {
			err = errors.Join(err, fmt.Errorf("--qemu-egress-denied has %q: each must be an IPv4 range such as 10.96.0.0/12", text))
			continue
		}
		e.Denied = append(e.Denied, prefix.Masked())
	}
	var badResolvers error
	e.Resolvers, badResolvers = parseResolvers(o.Resolvers)
	return e, errors.Join(err, badResolvers)
}

// parseResolvers returns the addresses of name servers.
func parseResolvers(texts []string) (all []netip.AddrPort, err error) {
	if len(texts) > maxResolvers {
		return nil, fmt.Errorf("--qemu-resolvers has %d addresses: it may have %d", len(texts), maxResolvers)
	}
	for _, text := range texts {
		at, bad := netip.ParseAddrPort(text)
		if address, badAddress := netip.ParseAddr(text); badAddress == nil {
			at, bad = netip.AddrPortFrom(address, control.DNSPort), nil
		}
		if bad != nil || at.Port() == 0 {
			err = errors.Join(err, fmt.Errorf("--qemu-resolvers has %q: each must be an IP address, with a port if it is not %d, such as 192.0.2.53 or [2001:db8::53]:5353", text, control.DNSPort))
			continue
		}
		all = append(all, at)
	}
	return all, err
}
