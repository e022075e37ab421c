// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"net/netip"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestAnswer lists what a server answers to a client.
func TestAnswer(t *testing.T) {
	t.Parallel()
	mac := [addressLength]byte{2, 0, 0, 0, 0, 1}
	server, own := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9")
	lease := Lease{Address: netip.PrefixFrom(own, 24), Router: server, Server: server, MTU: 1500, Duration: Forever}
	request := func(m message) []byte {
		m.id, m.mac = 7, mac
		return m.encode()
	}
	for name, c := range map[string]struct {
		packet []byte
		want   byte // 0 for no answer
	}{
		"a discovery":               {request(message{kind: kindDiscover}), kindOffer},
		"a request":                 {request(message{kind: kindRequest, requested: own, server: server}), kindACK},
		"a request after a restart": {request(message{kind: kindRequest, requested: own}), kindACK},
		"another address":           {request(message{kind: kindRequest, requested: netip.MustParseAddr("10.0.0.10")}), kindNAK},
		"another server":            {request(message{kind: kindRequest, requested: own, server: own}), 0},
		"a question for the rest":   {request(message{kind: kindInform}), kindACK},
		"an offer":                  {request(message{kind: kindOffer}), 0},
		"no options":                {make([]byte, offsetOptions), 0},
		"half a packet":             {request(message{kind: kindDiscover})[:offsetCookie], 0},
	} {
		answer := Answer(c.packet, lease, "vm")
		if answer == nil || c.want == 0 {
			assert.True(t, (answer == nil) == (c.want == 0), "%s: the answer is %x", name, answer)
			continue
		}
		kind, got, err := parse(answer, 7, mac)
		if err != nil || kind != c.want || kind != kindNAK && (got.Address != lease.Address || got.Duration != Forever || got.MTU != lease.MTU || got.Router != server) {
			t.Errorf("%s: the answer is %d, %+v, %v", name, kind, got, err)
		}
	}
}
