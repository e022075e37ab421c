// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// switchboard knows one machine by every name.
type switchboard struct{ address netip.Addr }

func (s switchboard) Lookup(context.Context, string) (netip.Addr, error) { return s.address, nil }

func (switchboard) Dial(context.Context, string, uint16, netip.AddrPort) (*os.File, error) {
	return nil, failure.ErrRefused
}

// newLink returns a link, and the other end of it.
func newLink(t *testing.T) (*control.PeerLink, *net.UnixConn) {
	t.Helper()
	here, there := framework.ConnPair(t)
	return control.NewPeerLink(here), there
}

// TestLinks checks that the last link is used that has not ended, in whatever order links come and end: two processes
// may give the machine one at the same time.
func TestLinks(t *testing.T) {
	t.Parallel()
	links := &Links{}
	assert.ErrorIs(t, "without a link", assert.ErrorOf(links.Lookup(t.Context(), "a")), failure.ErrUnreachable)
	first, last := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	check := func(what string, want netip.Addr) {
		t.Helper()
		assert.Eventually(t, what, func(t testing.TB) error {
			got, err := links.Lookup(t.Context(), "a")
			assert.True(t, err == nil && got == want, "the name is %s, %v, want %s", got, err, want)
			return nil
		})
	}
	link, there := newLink(t)
	go links.followLink(link)
	go func() { _ = control.ServeSwitchboard(t.Context(), there, switchboard{first}) }()
	check("the link is used", first)

	ended, itsEnd := newLink(t)
	assert.NoError(t, itsEnd.Close())
	links.followLink(ended)
	check("a link that had ended before it came is left out", first)

	link, there = newLink(t)
	go links.followLink(link)
	go func() { _ = control.ServeSwitchboard(t.Context(), there, switchboard{last}) }()
	check("the last link is used", last)
}
