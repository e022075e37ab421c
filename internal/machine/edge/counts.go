// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/failure"
)

// counts are what an edge has seen.
type counts struct {
	received, receivedBytes, sent, sentBytes, dropped atomic.Int64
	connections, flows                                atomic.Int64

	mu      sync.Mutex
	refused int64
	last    []report.Refusal
}

// refusals are the names of errors.
var refusals = []struct {
	err  error
	name string
}{
	{ErrDenied, report.RefusedDenied},
	{ErrNoEgress, report.RefusedNoEgress},
	{ErrSpecial, report.RefusedSpecial},
	{ErrNoUnicast, report.RefusedNoRoute},
	{failure.ErrNoMachine, report.RefusedNoMachine},
	{errNoMemory, report.RefusedTooMany},
	{errTooFast, report.RefusedTooMany},
}

// refusalOf returns the name of why a connection was not made.
func refusalOf(err error) string {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return report.RefusedNoAnswer
}

// Statistics returns the current statistics.
func (e *Edge) Statistics() report.NetworkStatistics {
	c := &e.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	return report.NetworkStatistics{
		PacketsIn: c.sent.Load(), BytesIn: c.sentBytes.Load(), PacketsOut: c.received.Load(), BytesOut: c.receivedBytes.Load(),
		Dropped: c.dropped.Load(), Connections: c.connections.Load(), Flows: c.flows.Load(),
		Refused: c.refused, LastRefused: slices.Clone(c.last),
	}
}

// noteRefusal remembers what was refused. A name is the guest's own text, of which only what a name may have is kept.
func (e *Edge) noteRefusal(protocol, target string, why error) {
	c := &e.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused++
	target = strings.Map(func(r rune) rune {
		if !report.IsTargetChar(r) {
			return '?'
		}
		return r
	}, target[:min(len(target), report.MaxTarget)])
	r := report.Refusal{Target: target, Protocol: protocol, Reason: refusalOf(why), Last: e.Clock.Now(), Count: 1}
	i := slices.IndexFunc(c.last, func(o report.Refusal) bool { return o.Target == target && o.Protocol == protocol })
	if i >= 0 {
		r.Count += c.last[i].Count
		c.last = slices.Delete(c.last, i, i+1)
	}
	if len(c.last) == report.MaxRefusals {
		c.last = slices.Delete(c.last, 0, 1)
	}
	c.last = append(c.last, r)
}
