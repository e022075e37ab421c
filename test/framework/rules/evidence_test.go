// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"
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
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

const (
	one types.UID = "uid-1"
	two types.UID = "uid-2"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// atSecond returns a time of an invented run.
func atSecond(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

// evidenceBuilder builds invented evidence: process 11 leads under epoch 5, and process 12 under
// epoch 6.
type evidenceBuilder struct {
	Evidence
	now int
}

func newEvidence() *evidenceBuilder {
	return &evidenceBuilder{Evidence: Evidence{
		Processes: []Process{{Replica: "replica-1", PID: 11, From: start}, {Replica: "replica-2", PID: 12, From: start}},
		Requested: map[types.UID]Requested{one: {Name: "vm-1", AtLeast: 1, AtMost: 1}},
		VMs:       map[types.UID]*api.VirtualMachine{},
	}}
}

// withEntry adds an entry to the journal. before and after are "id run state", or empty for no server.
func (s *evidenceBuilder) withEntry(pid int, epoch uint64, uid types.UID, action journal.Action, before, after string) *evidenceBuilder {
	s.now++
	s.Journal = append(s.Journal, journal.Entry{
		At: atSecond(s.now), PID: pid, Epoch: epoch, UID: uid, Action: action, Before: parseSnapshot(before), After: parseSnapshot(after),
	})
	return s
}

func parseSnapshot(text string) *journal.Snapshot {
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil
	}
	return &journal.Snapshot{ID: words[0], Run: words[1], State: driver.State(words[2])}
}

// withProcessKilled ends process 11 now.
func (s *evidenceBuilder) withProcessKilled() *evidenceBuilder {
	s.Processes[0].To = atSecond(s.now).Add(time.Millisecond)
	return s
}

// withFinalState records a VM and its server at the end.
func (s *evidenceBuilder) withFinalState(uid types.UID, server string) *evidenceBuilder {
	has := parseSnapshot(server)
	s.Servers = append(s.Servers, ServerOf(&fake.Record{UID: uid, ID: has.ID, Run: has.Run, State: has.State, CPUMilli: 2000}, start))
	s.VMs[uid] = framework.NewVM(s.Requested[uid].Name).UID(string(uid)).Action(api.ActionActive).Generation(1).Status(func(status *api.VirtualMachineStatus) {
		status.ObservedGeneration, status.Phase = 1, api.PhaseActive
		status.Server = &api.ServerStatus{ID: has.ID}
		status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
	}).Obj()
	return s
}

// withDeletionRequested records that a user requests the first VM's deletion now.
func (s *evidenceBuilder) withDeletionRequested() *evidenceBuilder {
	requested := s.Requested[one]
	requested.DeletedAt = atSecond(s.now)
	s.Requested[one] = requested
	return s
}

// withChange changes what was requested, or the final state.
func (s *evidenceBuilder) withChange(change func(*Evidence)) *evidenceBuilder {
	change(&s.Evidence)
	return s
}

// withStart adds the start of a process, while others run.
func (s *evidenceBuilder) withStart(pid int, uid types.UID, run string, others ...int) *evidenceBuilder {
	s.Starts = append(s.Starts, Start{At: atSecond(s.now), PID: pid, UID: uid, Run: run, Others: others})
	return s
}

const (
	first   = "fake-1 run-1 Running"
	stopped = "fake-1 run-1 Stopped"
	again   = "fake-1 run-2 Running"
	another = "fake-2 run-2 Running"
)

// evidenceOfCreation has the usual first event: a server is created.
func evidenceOfCreation() *evidenceBuilder {
	return newEvidence().withEntry(11, 5, one, journal.ActionCreate, "", first)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	twoStarts := func(e *Evidence) { e.Requested[one] = Requested{Name: "vm-1", AtLeast: 2, AtMost: 2} }
	for name, c := range map[string]struct {
		story *evidenceBuilder
		want  string // rule and text; empty if no rule is broken
	}{
		"nothing":           {newEvidence().withChange(func(e *Evidence) { delete(e.Requested, one) }), ""},
		"a creation":        {evidenceOfCreation().withFinalState(one, first), ""},
		"another leader":    {evidenceOfCreation().withEntry(12, 6, one, journal.ActionChange, first, first).withFinalState(one, first), ""},
		"refused":           {evidenceOfCreation().withEntry(12, 6, one, journal.ActionChange, first, first).withEntry(11, 5, one, journal.ActionRefused, "", "").withFinalState(one, first), ""},
		"stop and start":    {evidenceOfCreation().withChange(twoStarts).withEntry(11, 5, one, journal.ActionChange, first, stopped).withEntry(12, 6, one, journal.ActionChange, stopped, again).withFinalState(one, again), ""},
		"deletion":          {evidenceOfCreation().withDeletionRequested().withEntry(12, 6, one, journal.ActionDelete, first, ""), ""},
		"two servers' own":  {evidenceOfCreation().withChange(func(e *Evidence) { e.Requested[two] = Requested{Name: "vm-2", AtLeast: 1, AtMost: 1} }).withEntry(12, 6, two, journal.ActionCreate, "", another).withEntry(11, 5, one, journal.ActionChange, first, first).withFinalState(one, first).withFinalState(two, another), ""},
		"killed in between": {evidenceOfCreation().withProcessKilled().withEntry(12, 6, one, journal.ActionCreate, "", another).withFinalState(one, another), ""},
		"killed at the end": {evidenceOfCreation().withChange(twoStarts).withEntry(11, 5, one, journal.ActionChange, first, again).withEntry(11, 5, one, journal.ActionDelete, again, "").withProcessKilled().withFinalState(one, again), ""},

		"an old epoch": {evidenceOfCreation().withEntry(12, 6, one, journal.ActionChange, first, first).withEntry(11, 5, one, journal.ActionChange, first, first).withFinalState(one, first), "O5 after change by process 12"},

		"made twice":             {evidenceOfCreation().withEntry(12, 6, one, journal.ActionCreate, "", another).withFinalState(one, another), "O3 though fake-1 had been created"},
		"made over another":      {evidenceOfCreation().withEntry(12, 6, one, journal.ActionCreate, first, another).withFinalState(one, another), "O3 though fake-1 had been created"},
		"exchanged":              {evidenceOfCreation().withEntry(12, 6, one, journal.ActionChange, first, "fake-2 run-1 Running").withFinalState(one, "fake-2 run-1 Running"), "O3 made fake-2"},
		"made after its end":     {evidenceOfCreation().withDeletionRequested().withEntry(12, 6, one, journal.ActionDelete, first, "").withEntry(11, 6, one, journal.ActionCreate, "", another), "O3 though fake-1 had been created"},
		"gone and made again":    {evidenceOfCreation().withEntry(11, 5, one, journal.ActionChange, first, first).withProcessKilled().withEntry(12, 6, one, journal.ActionCreate, "", another).withFinalState(one, another), "O3 though fake-1 had been created"},
		"changed into no server": {newEvidence().withEntry(11, 5, one, journal.ActionChange, "", first).withFinalState(one, first), "O3 of no server"},

		"not as it was left":       {evidenceOfCreation().withEntry(11, 5, one, journal.ActionChange, stopped, first).withFinalState(one, first), "O1 Running was left"},
		"not done, and alive":      {evidenceOfCreation().withChange(twoStarts).withEntry(11, 5, one, journal.ActionChange, first, again).withFinalState(one, first), "O1 Running at the end"},
		"not done, killed later":   {evidenceOfCreation().withEntry(11, 5, one, journal.ActionChange, first, again).withEntry(12, 6, one, journal.ActionChange, first, first).withEntry(12, 6, one, journal.ActionChange, first, first).withProcessKilled().withFinalState(one, first), "O1 run-2"},
		"removed without an entry": {evidenceOfCreation(), "O1 there is no server at the end"},
		"removed unrequested":      {evidenceOfCreation().withEntry(11, 5, one, journal.ActionDelete, first, ""), "O7 delete by process 11"},
		"removed before":           {evidenceOfCreation().withEntry(11, 5, one, journal.ActionDelete, first, "").withEntry(11, 5, two, journal.ActionRefused, "", "").withDeletionRequested(), "O7 delete by process 11"},
		"of no user":               {evidenceOfCreation().withFinalState(one, first).withEntry(11, 5, two, journal.ActionCreate, "", another).withFinalState(two, another), "O7 no user requested it"},

		"restarted twice":   {evidenceOfCreation().withChange(twoStarts).withEntry(11, 5, one, journal.ActionChange, first, again).withEntry(12, 6, one, journal.ActionChange, again, "fake-1 run-3 Running").withFinalState(one, "fake-1 run-3 Running"), "O7 was started 3 times"},
		"never restarted":   {evidenceOfCreation().withChange(twoStarts).withFinalState(one, first), "O7 was started 1 times"},
		"start not applied": {evidenceOfCreation().withChange(twoStarts).withEntry(11, 5, one, journal.ActionChange, first, again).withProcessKilled().withFinalState(one, first), "O7 was started 1 times"},

		"deleted and there":   {evidenceOfCreation().withFinalState(one, first).withDeletionRequested(), "O4 was deleted and still exists"},
		"gone":                {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) { delete(e.VMs, one) }), "O7 vm-1 is gone"},
		"without a server":    {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) { e.Servers = nil }), "O1 it lacks a server"},
		"server without a VM": {evidenceOfCreation().withDeletionRequested().withFinalState(one, first).withChange(func(e *Evidence) { delete(e.VMs, one) }), "O2 lacks a VirtualMachine"},
		"not ready":           {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) { e.VMs[one].Status.Conditions = nil }), "O1 not Ready"},
		"of another size":     {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) { e.VMs[one].Spec.Resource[api.ResourceCPU] = resource.MustParse("3") }), "O1 2000m of CPU"},
		"of another id":       {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) { e.VMs[one].Status.Server.ID = "fake-2" }), "O1 its status has"},
		"on in place of off": {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) {
			e.VMs[one].Spec.Action, e.VMs[one].Status.Phase = api.ActionStopped, api.PhaseStopped
		}), "O1 is Running for action stopped"},
		"restart not reported": {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) { e.VMs[one].Spec.RestartedAt = new(metav1.Now()) }), "O1 a restart of"},
		"two servers":          {evidenceOfCreation().withFinalState(one, first).withFinalState(one, first), "O3 has 2 servers"},
		"of another state":     {evidenceOfCreation().withFinalState(one, first).withChange(func(e *Evidence) { e.Servers[0].State = driver.StatePaused }), "O11 is Active, and its server Paused"},
		"of no server":         {newEvidence().withFinalState(one, first).withChange(func(e *Evidence) { e.Servers = nil }), "O11 fake-1, which does not exist"},

		"never created":     {newEvidence(), "O7 was started 0 times"},
		"a process":         {evidenceOfCreation().withStart(21, one, "run-1").withFinalState(one, first), ""},
		"another process":   {evidenceOfCreation().withChange(twoStarts).withStart(21, one, "run-1").withStart(22, one, "run-2").withFinalState(one, first), ""},
		"two at once":       {evidenceOfCreation().withChange(twoStarts).withStart(21, one, "run-1").withStart(22, one, "run-2", 21), "O3 while [21] ran"},
		"two for one run":   {evidenceOfCreation().withChange(twoStarts).withStart(21, one, "run-1").withStart(22, one, "run-1"), "O3 as 21 was"},
		"one too many":      {evidenceOfCreation().withStart(21, one, "run-1").withStart(22, one, "run-2"), "O7 was started 2 times"},
		"process of nobody": {evidenceOfCreation().withStart(21, two, "run-1"), "O7 no user requested it"},
		"left over":         {evidenceOfCreation().withChange(func(e *Evidence) { e.Leftovers = []string{"process 21"} }), "O2 process 21 is left"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := Judge(c.story.Evidence)
			rule, text, _ := strings.Cut(c.want, " ")
			isWanted := func(v Violation) bool { return v.Rule == Rule(rule) && strings.Contains(v.Text, text) }
			assert.True(t, (c.want != "" || len(broken) == 0) && (c.want == "" || slices.ContainsFunc(broken, isWanted)), "got %v, want %q", broken, c.want)
		})
	}
}

func TestEpochDecreases(t *testing.T) {
	t.Parallel()
	s := evidenceOfCreation().withEntry(12, 6, one, journal.ActionChange, first, first)
	got := EpochDecreases(s.Journal)
	assert.True(t, len(got) == 0, "got %v", got)
	s.withEntry(11, 5, one, journal.ActionChange, first, first).withEntry(11, 5, one, journal.ActionChange, first, first)
	got = EpochDecreases(s.Journal)
	assert.True(t, len(got) == 2, "got %v, want 2", got)
}
