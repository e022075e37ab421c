// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

var mac = [6]byte{0x52, 0x54, 0, 1, 2, 3}

// answer is what a server sends.
type answer struct {
	kind    byte
	id      uint32
	mac     [6]byte
	address [4]byte
	options []byte
}

func (a answer) encode() []byte {
	p := make([]byte, offsetOptions)
	p[0] = opReply
	binary.BigEndian.PutUint32(p[offsetID:], a.id)
	copy(p[offsetYourAddress:], a.address[:])
	copy(p[offsetMAC:], a.mac[:])
	copy(p[offsetCookie:], cookie)
	p = append(p, optionKind, 1, a.kind)
	return append(append(p, a.options...), optionEnd)
}

var usual = []byte{
	optionMask, 4, 255, 255, 255, 0, optionRouter, 4, 10, 0, 2, 2, optionResolvers, 8, 10, 0, 2, 3, 0, 0, 0, 0,
	optionPad, optionDomain, 12, 'e', 'x', 'a', 'm', 'p', 'l', 'e', '.', 'o', 'r', 'g', 0, optionMTU, 2, 5, 220,
	optionDuration, 4, 0, 1, 81, 128, optionServer, 4, 10, 0, 2, 2,
}

var usualLease = Lease{
	Address: netip.MustParsePrefix("10.0.2.15/24"), Router: netip.MustParseAddr("10.0.2.2"),
	Resolvers: []netip.Addr{netip.MustParseAddr("10.0.2.3")}, Search: []string{"example.org"},
	MTU: 1500, Server: netip.MustParseAddr("10.0.2.2"), Duration: 24 * time.Hour,
}

// network answers what a client sends.
type network struct {
	answer func(kind byte, id uint32) []answer
	sent   [][]byte
	queue  [][]byte
}

func (n *network) Send(p []byte) error {
	n.sent = append(n.sent, p)
	options, err := parseOptions(p[offsetOptions:])
	if err != nil {
		return err
	}
	for _, a := range n.answer(options[optionKind][0], binary.BigEndian.Uint32(p[offsetID:])) {
		n.queue = append(n.queue, a.encode())
	}
	return nil
}

func (n *network) Receive(time.Duration) ([]byte, error) {
	if len(n.queue) == 0 {
		return nil, ErrTimeout
	}
	p := n.queue[0]
	n.queue = n.queue[1:]
	return p, nil
}

// TestAcquire checks the whole exchange, beside answers that are not for this client or are wrong.
func TestAcquire(t *testing.T) {
	t.Parallel()
	lost := 3
	n := &network{answer: func(kind byte, id uint32) []answer {
		if lost--; lost >= 0 {
			return nil
		}
		good := answer{kind: kindOffer, id: id, mac: mac, address: [4]byte{10, 0, 2, 15}, options: usual}
		if kind == kindRequest {
			good.kind = kindACK
		}
		other, far, broken, empty := good, good, good, good
		other.id, far.mac, broken.options, empty.address = id+1, [6]byte{1}, []byte{optionMask, 9, 1}, [4]byte{}
		return []answer{other, far, broken, empty, good}
	}}
	lease, err := Client{Transport: n, MAC: mac, Hostname: "web"}.Acquire(t.Context())
	assert.NoError(t, err)
	assert.True(t, reflect.DeepEqual(lease, usualLease), "got %+v, want %+v", lease, usualLease)
	options, err := parseOptions(n.sent[len(n.sent)-1][offsetOptions:])
	assert.NoError(t, err)
	for option, want := range map[byte]string{optionKind: "\x03", optionRequested: "\x0a\x00\x02\x0f", optionServer: "\x0a\x00\x02\x02", optionHostname: "web"} {
		assert.True(t, string(options[option]) == want, "option %d is %q, want %q", option, options[option], want)
	}
	assert.Equal(t, "the lease is renewed after", lease.Renewal(), 12*time.Hour)
}

// TestNoAnswer checks that the client tries until it is told to stop, with servers that refuse or are silent.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	for says, kind := range map[string]byte{"no answer of a DHCP server": 0, "refuses the address": kindNAK} {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		n := &network{answer: func(_ byte, id uint32) []answer {
			if tries++; tries == 5 {
				cancel()
			}
			if kind == 0 {
				return nil
			}
			return []answer{{kind: kind, id: id, mac: mac}}
		}}
		_, err := Client{Transport: n, MAC: mac}.Acquire(ctx)
		assert.ErrorIs(t, says, err, context.Canceled)
	}
}

// FuzzParse checks that no packet gives an address or a prefix that no host can have.
func FuzzParse(f *testing.F) {
	f.Add(answer{kind: kindACK, id: 7, mac: mac, address: [4]byte{10, 0, 2, 15}, options: usual}.encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		kind, l, err := parse(p, 7, mac)
		if err != nil || kind != kindOffer && kind != kindACK {
			return
		}
		assert.True(t, l.Address.IsValid() && !l.Address.Addr().IsUnspecified() && len(l.Resolvers) <= maxResolvers && l.Duration >= 0, "%x is %+v", p, l)
	})
}
