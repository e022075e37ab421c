// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"fmt"
	"net/netip"
	"strings"
)

// Names is the content of the files of /etc that name hosts.
type Names struct {
	// Address is the machine's address. It is not valid if the machine has none.
	Address   netip.Addr
	Resolvers []netip.Addr
	Search    []string
}

// hosts is the text of /etc/hosts, in the words of container engines.
func (n Names) hosts(hostname string) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	b.WriteString("fe00::\tip6-localnet\nff00::\tip6-mcastprefix\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n")
	address := n.Address
	if !address.IsValid() {
		address = netip.AddrFrom4([4]byte{127, 0, 1, 1})
	}
	fmt.Fprintf(&b, "%s\t%s\n", address, hostname)
	return b.String()
}

// resolvers is the text of /etc/resolv.conf. It is empty if the file of the image stays.
func (n Names) resolvers() string {
	var b strings.Builder
	for _, r := range n.Resolvers {
		fmt.Fprintf(&b, "nameserver %s\n", r)
	}
	if b.Len() > 0 && len(n.Search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(n.Search, " "))
	}
	return b.String()
}
