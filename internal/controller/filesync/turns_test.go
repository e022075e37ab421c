// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package filesync

import (
	"context"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestTurns checks that namespaces get slots in turn, that none gets all of them, and that no slot is lost.
func TestTurns(t *testing.T) {
	t.Parallel()
	turns := newTurns(8)
	join := func(namespace string, count int) (all []chan struct{}) {
		for range count {
			granted := make(chan struct{})
			turns.join(namespace, granted)
			all = append(all, granted)
		}
		return all
	}
	large := join("large", 20)
	assert.Equal(t, "slots of the only namespace", countGranted(large...), 6)
	small, other := join("small", 2), join("other", 1)
	assert.True(t, countGranted(small...) == 1 && countGranted(other...) == 1, "others have %d and %d slots", countGranted(small...), countGranted(other...))
	turns.give("large")
	turns.give("large")
	assert.True(t, countGranted(large...) == 6 && countGranted(small...) == 2, "after two slots of 6 became idle there are %d and %d", countGranted(large...), countGranted(small...))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.True(t, turns.take(ctx, "large") != nil, "a request whose context has ended has a slot")
	for _, c := range large[2:] { // two were given back above
		turns.leave("large", c)
	}
	turns.give("small")
	turns.give("small")
	turns.give("other")
	assert.True(t, turns.idle == 8 && len(turns.lines) == 0, "%d slots are idle, and lines of %d namespaces are left", turns.idle, len(turns.lines))
}

// TestTurnsInOrder checks that two namespaces get the only slot in turn: neither gets it three times while the other waits.
func TestTurnsInOrder(t *testing.T) {
	t.Parallel()
	turns := newTurns(1)
	const each = 5
	waiting := map[string][]chan struct{}{}
	for _, namespace := range []string{"one", "two"} {
		for range each {
			granted := make(chan struct{})
			turns.join(namespace, granted)
			waiting[namespace] = append(waiting[namespace], granted)
		}
	}
	had := map[string]int{}
	for had["one"] < each && had["two"] < each {
		for namespace, all := range waiting {
			if countGranted(all...) > had[namespace] {
				had[namespace]++
				turns.give(namespace)
				break
			}
		}
		assert.Require(t, max(had["one"], had["two"]) <= min(had["one"], had["two"])+2, "the namespaces had the slot %v times", had)
	}
}

func countGranted(all ...chan struct{}) (count int) {
	for _, c := range all {
		select {
		case <-c:
			count++
		default:
		}
	}
	return count
}
