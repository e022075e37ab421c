// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

const (
	mebibyte = 1 << 20
	quota    = 100 * mebibyte
)

func newAccounts() (*Accounts, *clocktesting.FakeClock) {
	c := clocktesting.NewFakeClock(time.Unix(0, 0))
	return NewAccounts(quota, c), c
}

// fill creates objects until that is refused, and returns the bytes that were admitted.
func fill(a *Accounts, namespace string, size int64) (admitted int64) {
	for a.Admit(Write{Namespace: namespace, Size: size, Growth: size}) == nil {
		admitted += size
	}
	return admitted
}

// TestLargestNamespaceStops checks that one namespace gets four fifths of the store, even in a
// burst between two counts, and that others go on then.
func TestLargestNamespaceStops(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	got := fill(a, "large", mebibyte)
	assert.True(t, got == 80*mebibyte, "one namespace got %d bytes", got)
	got = fill(a, "small", 4096)
	assert.True(t, got >= mebibyte, "a small namespace got %d bytes beside it", got)
	r := a.Admit(Write{Namespace: "large", Size: mebibyte, Growth: mebibyte})
	for _, want := range []string{"namespace large has 80 MiB.", "of the 100 MiB", "Delete objects", "a larger --store-quota"} {
		assert.Contains(t, fmt.Sprintf("%q is missing in", want), r.Message, want)
	}
}

// TestLaterNamespacesHaveRoom checks that those who come late find room, however many
// namespaces before them have taken all that they could get.
func TestLaterNamespacesHaveRoom(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	for i := range 10 {
		fill(a, fmt.Sprint(i), 4096)
	}
	got := fill(a, "late", 4096)
	assert.True(t, got >= mebibyte/4, "the eleventh namespace got %d bytes", got)
}

// TestSmallUpdatesGoOn checks what a namespace that has filled the store can still do.
func TestSmallUpdatesGoOn(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	fill(a, "large", mebibyte)
	for name, w := range map[string]Write{
		"shrinks":      {Size: 10, Growth: -10},
		"stays":        {Size: mebibyte},
		"grows a bit":  {Size: 2048, Growth: 200},
		"renews Lease": {Size: 500, IsVital: true},
	} {
		w.Namespace, w.IsUpdate = "large", true
		r := a.Admit(w)
		assert.True(t, r == nil, "an update that %s was refused: %v", name, r)
	}
	bits := int64(0)
	for a.Admit(Write{Namespace: "large", Size: 2048, Growth: smallGrowth, IsUpdate: true}) == nil {
		bits += smallGrowth
	}
	assert.True(t, bits >= mebibyte/4 && bits <= 5*mebibyte, "small updates added %d bytes", bits)
	r := a.Admit(Write{Namespace: "small", Size: 4096, Growth: 4096})
	assert.True(t, r == nil, "a small namespace was refused after them: %v", r)
}

// TestOthersCannotTakeAShare checks that namespaces which take all that they can get leave
// to others what these could store before, also to larger ones and to the whole cluster.
func TestOthersCannotTakeAShare(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	honest := map[string]int64{"": 2 * mebibyte, "small": 4096, "middle": 2 * mebibyte, "large": 10 * mebibyte}
	for namespace, size := range honest {
		a.changeAccount(namespace, func(x *account) { x.stored += size })
	}
	for i := range 6 {
		a.changeAccount(fmt.Sprint("hostile-", i), func(x *account) { x.stored += 4096 })
	}
	for range 2 { // as much in a second round, after a count
		for i := range 6 {
			namespace := fmt.Sprint("hostile-", i)
			fill(a, namespace, mebibyte)
			fill(a, namespace, 4096)
			admitAll(a, Write{Namespace: namespace, Size: 4096, Growth: smallGrowth, IsUpdate: true})
		}
		counted := map[string]int64{}
		for namespace, x := range a.accounts {
			counted[namespace] = x.bytes()
		}
		a.BeginCount()
		a.EndCount(counted)
	}
	for namespace, size := range honest {
		if got := fill(a, namespace, 4096); got < quota/1000 || size == 4096 && got < quota/200 || namespace == "" && got < quota/32 {
			t.Errorf("namespace %q, which had %d bytes, could store %d more", namespace, size, got)
		}
		r := a.Admit(Write{Namespace: namespace, Size: 4096, Growth: 20, IsUpdate: true})
		assert.True(t, r == nil, "an update of 20 bytes in namespace %q was refused: %v", namespace, r)
	}
	total, _, _ := a.Largest(1)
	assert.True(t, total <= quota, "all have %d bytes", total)
}

// TestDeletionsReturnTheAllowance checks that who deletes objects in a crowded store can write
// as much again beyond the share, and nobody more.
func TestDeletionsReturnTheAllowance(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	a.changeAccount("a", func(x *account) { x.stored += 90 * mebibyte })
	got := fill(a, "a", 4096)
	assert.True(t, got != 0 && got <= mebibyte/2, "the allowance is %d bytes", got)
	taken := a.accounts["a"].bytes()
	a.BeginCount()
	a.EndCount(map[string]int64{"a": taken})
	got = fill(a, "a", 4096)
	assert.True(t, got == 0, "after a count, %d bytes were admitted again", got)
	a.BeginCount()
	a.EndCount(map[string]int64{"a": taken - mebibyte/8})
	got = fill(a, "a", 4096)
	assert.True(t, got != 0 && got <= mebibyte/8+4096, "after a deletion, %d bytes were admitted", got)
}

// TestCountCorrects checks that a count replaces what was estimated, without losing writes
// that were admitted and are not stored yet.
func TestCountCorrects(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	fill(a, "a", mebibyte)
	count := func(stored int64) {
		a.BeginCount()
		a.EndCount(map[string]int64{"a": stored})
	}
	count(50 * mebibyte)
	got := a.accounts["a"].bytes()
	assert.True(t, got == 80*mebibyte, "after a count that does not show all, the account has %d bytes", got)
	count(50 * mebibyte)
	got = a.accounts["a"].bytes()
	assert.True(t, got == 50*mebibyte, "after the next count, the account has %d bytes", got)
	count(0)
	total, _, _ := a.Largest(1)
	assert.True(t, total == 0 && len(a.accounts) == 0, "after all was deleted, %d bytes and %d accounts are left", total, len(a.accounts))
	a.BeginCount()
	got = fill(a, "a", mebibyte)
	assert.True(t, got == 80*mebibyte, "during a count, %d bytes were admitted", got)
	a.EndCount(nil)
	assert.True(t, a.Admit(Write{Namespace: "a", Size: mebibyte, Growth: mebibyte}) != nil, "what was admitted during a count was forgotten")
}

// TestChurn checks that updates of one namespace are bounded in time, whatever their growth,
// and hold up neither others nor Leases, finalizers and deletions.
func TestChurn(t *testing.T) {
	t.Parallel()
	a, clock := newAccounts()
	update := Write{Namespace: "a", Size: mebibyte, IsUpdate: true}
	written := int64(0)
	for a.Admit(update) == nil {
		written += update.Size
	}
	if r := a.Admit(update); written > quota || r == nil || !r.IsTemporary || !strings.Contains(r.Message, "a has replaced or deleted 100 MiB within 90 s") {
		t.Errorf("%d bytes were replaced, then %+v", written, r)
	}
	assert.True(t, a.Admit(Write{Namespace: "a", Size: mebibyte, Growth: mebibyte}) != nil, "new objects are not bounded by the replaced content")
	r := a.Admit(Write{Namespace: "a", Size: mebibyte, IsUpdate: true, IsVital: true})
	assert.True(t, r == nil, "a finalizer could not be removed: %v", r)
	r = a.Admit(Write{Namespace: "b", Size: mebibyte, IsUpdate: true})
	assert.True(t, r == nil, "another namespace was refused: %v", r)
	clock.Step(2 * churnPeriod)
	r = a.Admit(update)
	assert.True(t, r == nil, "after a while: %v", r)
}

// TestPressed checks that much writing asks for a count.
func TestPressed(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	a.Admit(Write{Namespace: "a", Size: 4096, Growth: 4096})
	assert.True(t, len(a.HeavyLoads()) == 0, "a small write asks for a count")
	a.RecordDeletion("a", quota/16)
	assert.True(t, len(a.HeavyLoads()) == 1, "a large deletion asks for no count")
}

// admitAll repeats a write until it is refused.
func admitAll(a *Accounts, w Write) {
	var refusal *Refusal
	for refusal == nil {
		refusal = a.Admit(w)
	}
}
