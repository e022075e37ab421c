// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// counts are what an edge has seen.
type counts struct {
	received, receivedBytes, sent, sentBytes, dropped atomic.Int64
	connections, flows                                atomic.Int64

	mu      sync.Mutex
	refused int64
	last    []Refusal
}

// maxRefusals is how many refusals are remembered.
const maxRefusals = 8

// Refusal is what the guest asked for in vain.
type Refusal struct {
	// Target is an address with a port, or a name.
	Target string `json:"target"`
	// Protocol is tcp, udp or dns.
	Protocol string `json:"protocol"`
	// Why says why, for people.
	Why  string    `json:"why"`
	Last time.Time `json:"last"`
	// Count is how often it was asked for in a row.
	Count int64 `json:"count"`
}

// Statistics are the figures of a machine's network. The guest receives what the edge sends.
type Statistics struct {
	PacketsIn  int64 `json:"packetsIn"`
	BytesIn    int64 `json:"bytesIn"`
	PacketsOut int64 `json:"packetsOut"`
	BytesOut   int64 `json:"bytesOut"`
	// Dropped are packets that were not the guest's own, or broken.
	Dropped int64 `json:"dropped"`
	// Connections and Flows are those of TCP and UDP that are open.
	Connections int64 `json:"connections"`
	Flows       int64 `json:"flows"`
	// Refused is how much was refused, and LastRefused the last of it.
	Refused     int64     `json:"refused"`
	LastRefused []Refusal `json:"lastRefused,omitempty"`
}

// Statistics returns the figures of now.
func (e *Edge) Statistics() Statistics {
	c := &e.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	return Statistics{
		PacketsIn: c.sent.Load(), BytesIn: c.sentBytes.Load(), PacketsOut: c.received.Load(), BytesOut: c.receivedBytes.Load(),
		Dropped: c.dropped.Load(), Connections: c.connections.Load(), Flows: c.flows.Load(),
		Refused: c.refused, LastRefused: slices.Clone(c.last),
	}
}

// noteRefusal remembers what was refused.
func (e *Edge) noteRefusal(protocol, target string, why error) {
	c := &e.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused++
	r := Refusal{Target: target, Protocol: protocol, Why: why.Error(), Last: e.Clock.Now(), Count: 1}
	i := slices.IndexFunc(c.last, func(o Refusal) bool { return o.Target == target && o.Protocol == protocol })
	if i >= 0 {
		r.Count += c.last[i].Count
		c.last = slices.Delete(c.last, i, i+1)
	}
	if len(c.last) == maxRefusals {
		c.last = slices.Delete(c.last, 0, 1)
	}
	c.last = append(c.last, r)
}
