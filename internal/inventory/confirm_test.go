// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// TestOneQuestionConfirmsManyLooks : looks that wait at the same time share the
// next question for the engine's id, and never one that was asked before they
// were told what they have to confirm.
func TestOneQuestionConfirmsManyLooks(t *testing.T) {
	const looks = 50
	g := listed(t)
	var questions, told atomic.Int32
	first, answer := make(chan struct{}), make(chan struct{})
	g.engine.set(func() {
		g.engine.engineID = func(id string) string {
			if questions.Add(1) == 1 {
				close(first)
				<-answer
			}
			return id
		}
		g.engine.list = func(_ context.Context, do func() ([]driver.Server, error)) ([]driver.Server, error) {
			defer told.Add(1)
			return do()
		}
	})
	var all sync.WaitGroup
	look := func(n int) {
		all.Go(func() {
			if _, err := g.inv.Look(t.Context(), types.UID(fmt.Sprintf("uid-%d", n))); err != nil {
				t.Error(err)
			}
		})
	}
	look(0)
	<-first // the first question is under way
	for n := 1; n < looks; n++ {
		look(n)
	}
	g.eventually("all were told what they have to confirm", func() bool { return told.Load() == looks })
	close(answer)
	all.Wait()
	// One that was told just now may come too late for the second question.
	if n := questions.Load(); n < 2 || n > 5 {
		t.Errorf("%d questions for %d looks, want the first and one or a few for all others", n, looks)
	}
}

// TestAsManyListsForManyServers : what the engine is asked at rest does not
// depend on how many servers it has.
func TestAsManyListsForManyServers(t *testing.T) {
	few, many := callsAtRest(t, 3), callsAtRest(t, 600)
	if few != many || few == 0 {
		t.Errorf("%d lists and samples with 3 servers and %d with 600, want as many", few, many)
	}
}

// callsAtRest counts the lists and samples of ten minutes.
func callsAtRest(t *testing.T, servers int) int {
	t.Helper()
	g := newRig(t)
	for n := range servers {
		g.add(types.UID(fmt.Sprintf("uid-%d", n)))
	}
	g.start()
	g.wantSoon("uid-0", Present)
	lists := func() (n int) { g.engine.set(func() { n = g.engine.lists }); return n }
	usages := func() (n int) { g.engine.set(func() { n = g.engine.usages }); return n }
	g.eventually("both periods run", func() bool { return g.clock.Waiters() >= 2 })
	before := lists() + usages()
	for n := range 20 {
		wantLists, wantUsages := lists()+1, usages()+1
		g.clock.Step(g.inv.ListPeriod)
		g.eventually(fmt.Sprintf("period %d is over", n), func() bool { return lists() >= wantLists && usages() >= wantUsages })
	}
	return lists() + usages() - before
}

func TestRestAfter(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 999 * time.Microsecond: 0, time.Millisecond: 3 * time.Millisecond,
		20 * time.Millisecond: 60 * time.Millisecond, time.Second: maxRest,
	} {
		if got := restAfter(took); got != want {
			t.Errorf("after %s: rest %s, want %s", took, got, want)
		}
	}
}
