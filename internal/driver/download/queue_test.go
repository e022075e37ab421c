// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// beginIn registers servers of a namespace as waiting, each for a key equal to its UID.
func (r *rig) beginIn(namespace string, uids ...types.UID) {
	r.t.Helper()
	for _, uid := range uids {
		r.namespace = namespace
		r.begin(uid, string(uid))
	}
}

// began returns the fetches that began, by key; there must be n.
func (r *rig) began(n int) map[string]*run {
	r.t.Helper()
	all := map[string]*run{}
	for range n {
		f := r.next()
		all[f.key] = f
	}
	if len(r.begun) != 0 {
		r.t.Errorf("more than %d began", n)
	}
	return all
}

func (r *rig) waits(uid types.UID, want bool) {
	r.t.Helper()
	if status := r.Progress(uid); strings.HasSuffix(status, ": it waits for other fetches to end") != want || !strings.HasPrefix(status, "fetching "+string(uid)) {
		r.t.Errorf("the status of %s is %q, want it to wait: %v", uid, status, want)
	}
}

// TestTurns checks that no more fetches run than allowed, and that the others show that
// they wait and begin in the order of arrival.
func TestTurns(t *testing.T) {
	r := newRig(t)
	r.Concurrency = 4
	r.beginIn("one", "a", "b")
	r.beginIn("two", "c", "d")
	r.beginIn("three", "e", "f")
	running := r.began(4)
	for _, uid := range []types.UID{"a", "b", "c", "d", "e", "f"} {
		r.waits(uid, uid >= "e")
		r.want(uid, string(uid), 1)
	}
	running["b"].end <- nil
	if f := r.next(); f.key != "e" {
		t.Errorf("%s began, want e", f.key)
	}
	r.waits("e", false)
	r.waits("f", true)
	running["c"].end <- errors.New("no")
	if f := r.next(); f.key != "f" {
		t.Errorf("%s began, want f", f.key)
	}
}

// TestTurnGivenUp checks that an abandoned fetch gets no turn.
func TestTurnGivenUp(t *testing.T) {
	r := newRig(t)
	r.Concurrency = 1
	r.beginIn("one", "a", "b", "c")
	a := r.began(1)["a"]
	if err := r.Abandon(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	a.end <- nil
	if f := r.next(); f.key != "c" {
		t.Errorf("%s began, want c", f.key)
	}
}

// TestTurnsOfOne checks that no namespace has all places.
func TestTurnsOfOne(t *testing.T) {
	r := newRig(t)
	r.Concurrency = 4
	r.beginIn("one", "a", "b", "c", "d", "e")
	r.beginIn("two", "f", "g")
	running := r.began(4)
	keys := make([]string, 0, len(running))
	for key := range running {
		keys = append(keys, key)
	}
	if slices.Sort(keys); !slices.Equal(keys, []string{"a", "b", "c", "f"}) {
		t.Errorf("%q began", keys)
	}
	running["f"].end <- nil
	if f := r.next(); f.key != "g" {
		t.Errorf("%s began, want g", f.key)
	}
}

// TestFinal checks that a failure that only another spec can fix is reported as that.
func TestFinal(t *testing.T) {
	r := newRig(t)
	r.begin("a", "x")
	r.next().end <- driver.Errorf(driver.ErrInvalid, "too large")
	assert.Receive(t, "it is notified", r.notified)
	if _, err := r.Outcome("a", "x"); !errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrRetry) || err.Error() != "too large" || driver.ReasonOf(err) != "" {
		t.Errorf("error %v", err)
	}
}
