// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/vmtest"
)

const (
	one types.UID = "uid-1"
	two types.UID = "uid-2"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// second is an instant of a hand-made story.
func second(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

// story is hand-made evidence: process 11 leads under epoch 5, process 12 under
// epoch 6.
type story struct {
	Evidence
	now int
}

func newStory() *story {
	return &story{Evidence: Evidence{
		Processes: []Process{{"replica-1", 11, start, time.Time{}}, {"replica-2", 12, start, time.Time{}}},
		Asked:     map[types.UID]Asked{one: {"vm-1", time.Time{}, 1, 1, nil}},
		VMs:       map[types.UID]*api.VirtualMachine{}, Servers: map[types.UID]*fake.Record{},
	}}
}

// entry adds a line to the journal; a sketch is "id run state", empty for none.
func (s *story) entry(pid int, epoch uint64, uid types.UID, deed journal.Action, had, has string) *story {
	s.now++
	s.Journal = append(s.Journal, journal.Entry{
		At: second(s.now), PID: pid, Epoch: epoch, UID: uid, Action: deed, Before: sketchOf(had), After: sketchOf(has),
	})
	return s
}

func sketchOf(text string) *journal.Snapshot {
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil
	}
	return &journal.Snapshot{ID: words[0], Run: words[1], State: driver.State(words[2])}
}

// killed ends process 11 now.
func (s *story) killed() *story {
	s.Processes[0].To = second(s.now).Add(time.Millisecond)
	return s
}

// left records a VM and its server at the end.
func (s *story) left(uid types.UID, server string) *story {
	has := sketchOf(server)
	s.Servers[uid] = &fake.Record{UID: uid, ID: has.ID, Run: has.Run, State: has.State, CPUMilli: 2000}
	s.VMs[uid] = vmtest.VM(s.Asked[uid].Name).UID(string(uid)).Action(api.ActionActive).Generation(1).Status(func(status *api.VirtualMachineStatus) {
		status.ObservedGeneration, status.Phase = 1, api.PhaseActive
		status.Server = &api.ServerStatus{ID: has.ID}
		status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
	}).Obj()
	return s
}

// asked changes what users requested.
func (s *story) asked(change func(map[types.UID]Asked)) *story {
	change(s.Asked)
	return s
}

// deleted records that a user requests the first VM's deletion now.
func (s *story) deleted() *story {
	a := s.Asked[one]
	a.DeletedAt = second(s.now)
	s.Asked[one] = a
	return s
}

// with changes the final state.
func (s *story) with(change func(*Evidence)) *story {
	change(&s.Evidence)
	return s
}

const (
	first   = "fake-1 run-1 Running"
	stopped = "fake-1 run-1 Stopped"
	again   = "fake-1 run-2 Running"
	another = "fake-2 run-2 Running"
)

// created is the usual begin of a story.
func created() *story { return newStory().entry(11, 5, one, journal.ActionCreate, "", first) }

func TestJudge(t *testing.T) {
	t.Parallel()
	twoStarts := func(asked map[types.UID]Asked) { asked[one] = Asked{"vm-1", time.Time{}, 2, 2, nil} }
	for name, c := range map[string]struct {
		story *story
		want  Rule // empty: all is well
	}{
		"nothing":           {newStory().asked(func(a map[types.UID]Asked) { delete(a, one) }), ""},
		"a creation":        {created().left(one, first), ""},
		"another leader":    {created().entry(12, 6, one, journal.ActionChange, first, first).left(one, first), ""},
		"refused":           {created().entry(12, 6, one, journal.ActionChange, first, first).entry(11, 5, one, journal.ActionRefused, "", "").left(one, first), ""},
		"stop and start":    {created().asked(twoStarts).entry(11, 5, one, journal.ActionChange, first, stopped).entry(12, 6, one, journal.ActionChange, stopped, again).left(one, again), ""},
		"deletion":          {created().deleted().entry(12, 6, one, journal.ActionDelete, first, ""), ""},
		"two servers' own":  {created().asked(func(a map[types.UID]Asked) { a[two] = Asked{"vm-2", time.Time{}, 1, 1, nil} }).entry(12, 6, two, journal.ActionCreate, "", another).entry(11, 5, one, journal.ActionChange, first, first).left(one, first).left(two, another), ""},
		"killed in between": {created().killed().entry(12, 6, one, journal.ActionCreate, "", another).left(one, another), ""},
		"killed at the end": {created().asked(twoStarts).entry(11, 5, one, journal.ActionChange, first, again).entry(11, 5, one, journal.ActionDelete, again, "").killed().left(one, again), ""},

		"an old epoch": {created().entry(12, 6, one, journal.ActionChange, first, first).entry(11, 5, one, journal.ActionChange, first, first).left(one, first), RuleEpochs},

		"made twice":             {created().entry(12, 6, one, journal.ActionCreate, "", another).left(one, another), RuleOnce},
		"made over another":      {created().entry(12, 6, one, journal.ActionCreate, first, another).left(one, another), RuleOnce},
		"exchanged":              {created().entry(12, 6, one, journal.ActionChange, first, "fake-2 run-1 Running").left(one, "fake-2 run-1 Running"), RuleOnce},
		"made after its end":     {created().deleted().entry(12, 6, one, journal.ActionDelete, first, "").entry(11, 6, one, journal.ActionCreate, "", another), RuleOnce},
		"gone and made again":    {created().entry(11, 5, one, journal.ActionChange, first, first).killed().entry(12, 6, one, journal.ActionCreate, "", another).left(one, another), RuleOnce},
		"changed into no server": {newStory().entry(11, 5, one, journal.ActionChange, "", first).left(one, first), RuleOnce},

		"not as it was left":      {created().entry(11, 5, one, journal.ActionChange, stopped, first).left(one, first), RuleKept},
		"not done, and alive":     {created().asked(twoStarts).entry(11, 5, one, journal.ActionChange, first, again).left(one, first), RuleKept},
		"not done, killed later":  {created().entry(11, 5, one, journal.ActionChange, first, again).entry(12, 6, one, journal.ActionChange, first, first).entry(12, 6, one, journal.ActionChange, first, first).killed().left(one, first), RuleKept},
		"removed behind its back": {created(), RuleKept},
		"removed unasked":         {created().entry(11, 5, one, journal.ActionDelete, first, ""), RuleKept},
		"removed before":          {created().entry(11, 5, one, journal.ActionDelete, first, "").entry(11, 5, two, journal.ActionRefused, "", "").deleted(), RuleKept},
		"nobody's":                {created().left(one, first).entry(11, 5, two, journal.ActionCreate, "", another).left(two, another), RuleKept},

		"restarted twice":  {created().asked(twoStarts).entry(11, 5, one, journal.ActionChange, first, again).entry(12, 6, one, journal.ActionChange, again, "fake-1 run-3 Running").left(one, "fake-1 run-3 Running"), RuleStarts},
		"never restarted":  {created().asked(twoStarts).left(one, first), RuleStarts},
		"started in vain":  {created().asked(twoStarts).entry(11, 5, one, journal.ActionChange, first, again).killed().left(one, first), RuleStarts},
		"no finalizer yet": {created().left(one, first).with(func(e *Evidence) { e.Sights = []Sight{{one, second(2), false}} }), RuleFinalizer},
		"finalizer seen":   {created().left(one, first).with(func(e *Evidence) { e.Sights = []Sight{{one, second(0), false}, {one, second(2), true}} }), ""},

		"deleted and there":   {created().left(one, first).deleted(), RuleEnd},
		"gone":                {created().left(one, first).with(func(e *Evidence) { delete(e.VMs, one) }), RuleEnd},
		"without a server":    {created().left(one, first).with(func(e *Evidence) { delete(e.Servers, one) }), RuleEnd},
		"server without a VM": {created().deleted().left(one, first).with(func(e *Evidence) { delete(e.VMs, one) }), RuleEnd},
		"not ready":           {created().left(one, first).with(func(e *Evidence) { e.VMs[one].Status.Conditions = nil }), RuleEnd},
		"of another size":     {created().left(one, first).with(func(e *Evidence) { e.VMs[one].Spec.Resource[api.ResourceCPU] = resource.MustParse("3") }), RuleEnd},
		"of another id":       {created().left(one, first).with(func(e *Evidence) { e.VMs[one].Status.Server.ID = "fake-2" }), RuleEnd},
		"on in place of off": {created().left(one, first).with(func(e *Evidence) {
			e.VMs[one].Spec.Action, e.VMs[one].Status.Phase = api.ActionStopped, api.PhaseStopped
		}), RuleEnd},
		"restart not reported": {created().left(one, first).with(func(e *Evidence) { e.VMs[one].Spec.RestartedAt = new(metav1.Now()) }), RuleEnd},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			violations := Judge(c.story.Evidence)
			found := c.want == ""
			for _, v := range violations {
				found = found || v.Rule == c.want
			}
			if !found || c.want == "" && len(violations) > 0 {
				t.Errorf("got %v, want %q", violations, c.want)
			}
		})
	}
}

func TestFallen(t *testing.T) {
	t.Parallel()
	s := created().entry(12, 6, one, journal.ActionChange, first, first)
	if got := Fallen(s.Journal); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	s.entry(11, 5, one, journal.ActionChange, first, first).entry(11, 5, one, journal.ActionChange, first, first)
	if got := Fallen(s.Journal); len(got) != 2 {
		t.Errorf("got %v, want 2", got)
	}
}

// TestBlame checks that a fenced call is attributed to the fault of its process, or
// to one that affected all processes.
func TestBlame(t *testing.T) {
	t.Parallel()
	s := newStory()
	s.Faults = []Fault{
		{Halt, 11, second(10), second(20)}, {Cut, 11, second(5), second(6)}, {Late, 12, second(10), second(20)}, {KillAPI, 0, second(50), second(51)},
	}
	for name, c := range map[string]struct {
		pid, at int
		want    Kind
	}{
		"while it lasts":       {11, 15, Halt},
		"just after":           {11, 21, Halt},
		"before the next":      {11, 7, Cut},
		"of another process":   {12, 15, Late},
		"of no process":        {12, 52, KillAPI},
		"long after":           {11, 40, nothing},
		"of a process unknown": {13, 15, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := s.blame(journal.Entry{PID: c.pid, At: second(c.at)}); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
