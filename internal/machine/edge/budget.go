// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"sync"

	"cloudnative.tw/drover/internal/machine/control"
)

// Shares of the budget, in bytes. The largest is enough for the delay of a local link; with the smallest data still
// moves. A fixed part of each is for what a connection has beside its buffers: its endpoint and two goroutines.
const (
	largestShare  = 512 << 10
	smallestShare = 24 << 10
	fixedShare    = 12 << 10
	// flowShare is the share of a flow of UDP.
	flowShare = 24 << 10
	// unboundShare is the least share with which the kernel's buffers are not bounded: that of the tenth connection.
	unboundShare = largestShare * 3 / 4
	// shrinking is how fast shares shrink as the budget is used up.
	shrinking = 64
)

// Each kind of use leaves some bytes of the budget to the kinds below it, so that many connections do not stop names, and
// nothing of the guest stops Drover's own connections, which may use all.
const (
	keptByConnections = 1 << 20
	keptByFlows       = 512 << 10
	keptByNames       = 256 << 10
	// maxFlows is the most that flows use together. Names that are looked up may use keptByFlows beside.
	maxFlows = control.EdgeMemoryBytes / 2
)

// budget is the memory that is left, and what flows use of it.
type budget struct {
	mu          sync.Mutex
	left, flows int
}

func newBudget() budget { return budget{left: control.EdgeMemoryBytes} }

// takeShare takes the share of a connection, and keeps some of the budget: the fewer there are, the more. It returns 0 if
// nothing is left.
func (b *budget) takeShare(kept int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	share := min(max(b.left/shrinking*b.left/control.EdgeMemoryBytes, smallestShare), largestShare)
	if share > b.left-kept {
		return 0
	}
	b.left -= share
	return share
}

// takeFlow takes what a flow of UDP needs, and reports whether there was as much.
func (b *budget) takeFlow() bool { return b.takeFlowOf(maxFlows, keptByFlows) }

// takeName takes what it needs to look up a name, and reports whether there was as much.
func (b *budget) takeName() bool { return b.takeFlowOf(maxFlows+keptByFlows, keptByNames) }

func (b *budget) takeFlowOf(most, kept int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flows+flowShare > most || flowShare > b.left-kept {
		return false
	}
	b.left -= flowShare
	b.flows += flowShare
	return true
}

// giveBackFlow gives back what takeFlow or takeName has taken.
func (b *budget) giveBackFlow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += flowShare
	b.flows -= flowShare
}

func (b *budget) giveBack(share int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += share
}

// buffersOf divides a share: stack is how large each of the two buffers in the network stack is, and copying that of
// each direction.
func buffersOf(share int) (stack, copying int) {
	left := share - fixedShare
	copying = min(left/8, 32<<10)
	return (left - 2*copying) / 2, copying
}
