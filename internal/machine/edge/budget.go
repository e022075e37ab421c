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

// budget is the memory that is left for connections.
type budget struct {
	mu   sync.Mutex
	left int
}

func newBudget() budget { return budget{left: control.EdgeMemoryBytes} }

// takeShare takes the share of a connection: the fewer there are, the more. It returns 0 if nothing is left.
func (b *budget) takeShare() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	share := min(max(b.left/shrinking*b.left/control.EdgeMemoryBytes, smallestShare), largestShare)
	if share > b.left {
		return 0
	}
	b.left -= share
	return share
}

// takeFlow takes what a flow of UDP needs, and reports whether there was as much. Flows leave half of the budget to
// connections.
func (b *budget) takeFlow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < control.EdgeMemoryBytes/2 {
		return false
	}
	b.left -= flowShare
	return true
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
