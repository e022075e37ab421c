// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// State has the results that two runs of one workload must share.
type State struct {
	// VMs are the statuses by name, without what differs from run to run.
	VMs map[string]string
	// Servers are the servers' states and settings.
	Servers []string
	Effects map[string]Effects
	// Unreported count the runs that no status has named. Whether there are some depends on the moment of a fault.
	Unreported map[string]int
}

// Differences returns how a state differs from that of a run without faults (O7).
func (s State) Differences(want State) []string {
	all := differences("%s is %s, want %s", s.VMs, want.VMs)
	if got, want := strings.Join(s.Servers, "\n"), strings.Join(want.Servers, "\n"); got != want {
		all = append(all, fmt.Sprintf("the servers are %s, want %s", got, want))
	}
	return append(all, differences("%s had %+v, want %+v", s.Effects, want.Effects)...)
}

// differences formats what differs, by its name in either map.
func differences[V comparable](format string, got, want map[string]V) (all []string) {
	names := slices.AppendSeq(slices.Collect(maps.Keys(got)), maps.Keys(want))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if got[name] != want[name] {
			all = append(all, fmt.Sprintf(format, name, got[name], want[name]))
		}
	}
	return all
}

// Evidence is the evidence by which a world is judged, besides its observations.
type Evidence struct {
	Engine    Engine
	Processes []rules.Process
	// Output is the output of the processes.
	Output string
	// Decisions are the last of them, in sentences.
	Decisions string
	// Failures are why processes have ended that no fault had ended.
	Failures []string
}

// Judge returns the state of a world at rest, and the rules that were broken.
func (w *World) Judge(ctx context.Context, r *Replicas) (State, []Violation, error) {
	state, broken, err := w.JudgeEvidence(ctx, Evidence{r.plan.Engine, r.Processes(), r.Output(), r.Decisions(), r.Failures()})
	return state, append(r.BrokenAtCrashes(), broken...), err
}

// JudgeEvidence does the same for processes of another kind.
func (w *World) JudgeEvidence(ctx context.Context, e Evidence) (State, []Violation, error) {
	seen, err := e.Engine.Inspect(ctx, w, e.Processes)
	if err != nil {
		return State{}, nil, err
	}
	w.mu.Lock()
	now, versions := maps.Clone(w.now), slices.Clone(w.versions)
	w.mu.Unlock()
	all := slices.Concat(seen.Violations, rules.CheckServers(slices.Collect(maps.Values(now)), seen.Servers), rules.CheckClaims(versions, seen.Created))
	for _, text := range e.Failures {
		all = append(all, rules.Broken(rules.O10, "a process ended by itself: %s", text))
	}
	secrets, err := w.checkSecrets(ctx, e, seen, versions)
	if err != nil {
		return State{}, nil, err
	}
	if all = append(all, secrets...); len(all) == 0 { // who waits until all is well need not replay each time
		all, err = w.replayDecisions()
	}
	return stateOf(now, seen), all, err
}

// checkProtected reads the API live: a server without a VirtualMachine, or whose
// VirtualMachine could be deleted without a trace, would be lost with the controller.
func (w *World) checkProtected(ctx context.Context, servers []Server) ([]Violation, error) {
	list, err := w.virtualMachines().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	protected := map[types.UID]bool{}
	for n := range list.Items {
		protected[list.Items[n].UID] = slices.Contains(list.Items[n].Finalizers, api.FinalizerServer)
	}
	var all []Violation
	for _, s := range servers {
		if !s.Released && !protected[s.UID] {
			all = append(all, rules.Broken(rules.O2, "after a crash the server of %s has no VirtualMachine with a finalizer", s.Name))
		}
	}
	return all, nil
}

// names returns the names of all VirtualMachines that ever existed, by UID.
func (w *World) names() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := map[string]string{}
	for _, vm := range w.versions {
		names[string(vm.UID)] = vm.Name
	}
	return names
}

func stateOf(now map[string]*api.VirtualMachine, seen Observed) State {
	s := State{VMs: map[string]string{}, Effects: seen.Effects, Unreported: seen.Unreported}
	for name, vm := range now {
		s.VMs[name] = comparableStatus(vm)
	}
	for _, server := range seen.Servers {
		s.Servers = append(s.Servers, fmt.Sprintf("%s %s released=%v %s", server.Name, server.State, server.Released, server.Config))
	}
	slices.Sort(s.Servers)
	return s
}

// comparableStatus is a status without what differs from run to run.
func comparableStatus(vm *api.VirtualMachine) string {
	s := vm.Status
	var text strings.Builder
	fmt.Fprintf(&text, "phase=%s reason=%s generation=%d/%d restarts=%d pending=%v restarted=%v server=%v finalizers=%v",
		s.Phase, s.Reason, s.ObservedGeneration, vm.Generation, s.RestartCount, s.PendingFields, s.RestartedAt != nil, s.Server != nil, vm.Finalizers)
	for _, c := range s.Conditions {
		if c.Type == api.ConditionConfined {
			continue // a crash right after QEMU was started leaves unknown how, and the reason says so
		}
		fmt.Fprintf(&text, " %s=%s/%s", c.Type, c.Status, c.Reason)
	}
	if s.Operation != nil {
		fmt.Fprintf(&text, " operation=%s", s.Operation.Type)
	}
	return text.String()
}

// Settle judges again and again until no rule is broken, since what has to be done may take a while,
// such as an orphan's grace period. It returns what is broken at last.
func Settle(ctx context.Context, judge func() ([]Violation, error)) (broken []Violation, err error) {
	_ = assert.Poll(ctx, "no rule is broken", func() error {
		broken, err = judge()
		if err == nil && len(broken) > 0 {
			return errors.New(broken[0].String())
		}
		return nil
	})
	return broken, err
}

// atRest is the state that WaitRest waits for.
const atRest = "nothing is written at rest"

// WaitRest waits until nothing is written for a while (O8), but for those to a resource that is not
// looked at, if it is named. What is only late, such as an event that client-go sends again, may
// still be written: schedules, whose clock is not the host's, allow no write at all.
func (w *World) WaitRest(ctx context.Context, during time.Duration, except ...string) error {
	writes := func() []string {
		return slices.DeleteFunc(w.Writes(), func(write string) bool { return slices.Contains(except, path.Base(write)) })
	}
	err := assert.Poll(ctx, atRest, func() error {
		before := len(writes())
		select {
		case <-time.After(during):
		case <-ctx.Done():
		}
		if after := writes(); len(after) > before {
			return fmt.Errorf("in %s there were the writes %v", during, after[before:])
		}
		return ctx.Err()
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &NotConvergedError{atRest, err}
}

// ViolationOf returns the violation that an error of a step is, if it is one.
func ViolationOf(err error) *Violation {
	late, ok := errors.AsType[*NotConvergedError](err)
	switch {
	case !ok:
		return nil
	case strings.HasSuffix(late.What, "is gone"):
		return &Violation{Rule: rules.O4, Text: late.Error()}
	case late.What == atRest:
		return &Violation{Rule: rules.O8, Text: late.Error()}
	}
	return &Violation{Rule: rules.O10, Text: late.Error()}
}

// readJournal adds what a driver's journal shows of servers: effects, first creations, and the rules that were broken.
func (w *World) readJournal(path string, processes []rules.Process, o *Observed) error {
	entries, err := rules.Read(path, new(int64))
	if err != nil {
		return err
	}
	since, names := w.since(), w.names()
	entries = slices.DeleteFunc(entries, func(e journal.Entry) bool { return e.At.Before(since) })
	for _, h := range rules.Trace(entries, o.Servers, processes) {
		name := names[string(h.UID)]
		for _, v := range append(w.checkNotLate(h.UID, entries), h.Violations...) {
			o.Violations = append(o.Violations, rules.Broken(v.Rule, "%s: %s", name, v.Text))
		}
		o.Effects[name] = addEffects(o.Effects[name], h)
		if n := slices.IndexFunc(h.Applied, func(e journal.Entry) bool { return e.Action == journal.ActionCreate }); n >= 0 {
			o.Created[h.UID] = h.Applied[n].At
		}
	}
	return nil
}

// checkNotLate checks that no server was created for a VirtualMachine that was gone, even if
// the sweep has removed it since.
func (w *World) checkNotLate(uid types.UID, entries []journal.Entry) (broken []Violation) {
	w.mu.Lock()
	gone, isGone := w.gone[string(uid)]
	w.mu.Unlock()
	for _, entry := range rules.ByServer(entries)[uid] {
		if isGone && entry.Action == journal.ActionCreate && entry.At.After(gone) {
			broken = append(broken, rules.Broken(rules.O2, "%s, and the VirtualMachine was gone at %s", rules.DescribeEntry(entry), gone.UTC().Format(time.StampMilli)))
		}
	}
	return broken
}

func addEffects(e Effects, h rules.History) Effects {
	e.Runs += h.CountRuns()
	for _, entry := range h.Applied {
		switch entry.Action {
		case journal.ActionCreate:
			e.Creates++
		case journal.ActionDelete:
			e.Deletes++
		case journal.ActionRelease:
			e.Releases++
		default:
		}
	}
	return e
}

// Texts that no log, event, status, decision or command line may have (O12).
const (
	// Secret is in the user-data.
	Secret = "drover-secret-5c1b"
	// token is in the kubeconfig.
	token = "drover-token-90ae"
	// foreignAnswer is in the answers of a registry that is not Drover's.
	foreignAnswer = "drover-answer-77d2"
)

// concealed has those texts by their descriptions.
var concealed = map[string]string{"user-data": Secret, "the token of the kubeconfig": token, "the answer of a registry": foreignAnswer}

// checkSecrets looks for them in all that people can read.
func (w *World) checkSecrets(ctx context.Context, e Evidence, seen Observed, versions []*api.VirtualMachine) ([]Violation, error) {
	events, err := w.KubeClient.EventsV1().Events(w.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	decisions, err := readMatching(filepath.Join(w.Dir, decisionsFiles))
	if err != nil {
		return nil, err
	}
	return rules.CheckSecrets(concealed, map[string]any{
		"an event": events.Items, "a VirtualMachine": versions, "a log": e.Output, "a decision": decisions, "the engine": seen.Text,
	})
}

// readMatching returns the content of the files that match a pattern.
func readMatching(pattern string) (string, error) {
	paths, err := filepath.Glob(pattern)
	var all strings.Builder
	for _, path := range paths {
		content, readErr := os.ReadFile(path)
		if readErr != nil {
			return "", readErr
		}
		all.Write(content)
	}
	return all.String(), err
}

// decisionsFiles matches all of them, with those that were full.
const decisionsFiles = "decisions-*"

// decisionsFile is where a process records its decisions, by a number from 0 on. Processes
// that run one after the other may share one.
func (w *World) decisionsFile(n int) string {
	return filepath.Join(w.Dir, fmt.Sprintf("decisions-%d", n))
}

// RecordDecisions is the flag for that.
func (w *World) RecordDecisions(n int) string { return "--decisions=" + w.decisionsFile(n) }

// Decisions returns the last ones in so many files, in sentences.
func (w *World) Decisions(files int) string {
	var paths []string
	for n := range files {
		paths = append(paths, w.decisionsFile(n))
	}
	all, err := rules.ReadDecisions(paths...)
	if err != nil {
		return "the decisions cannot be read: " + err.Error()
	}
	return rules.FormatDecisions(all)
}

// replayDecisions derives all recorded decisions again, and returns those that come out
// otherwise (O14).
func (w *World) replayDecisions() ([]Violation, error) {
	if w.DecidesOtherwise {
		return nil, nil
	}
	paths, err := filepath.Glob(filepath.Join(w.Dir, decisionsFiles))
	if err != nil {
		return nil, err
	}
	all, err := rules.ReadDecisions(paths...)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Lab.replayed.Add(int64(max(0, len(all)-w.replayed)))
	w.replayed = max(w.replayed, len(all))
	return rules.CheckDecisions(all), nil
}

// TakeReplayed returns how many decisions were derived again since the last call.
func (l *Lab) TakeReplayed() int64 { return l.replayed.Swap(0) }

// Decisions returns the last decisions of all processes, in sentences.
func (r *Replicas) Decisions() string { return r.world.Decisions(len(r.Processes())) }

// The UIDs of servers that are not this world's: one of another cluster, and one that was
// released there.
const (
	foreignUID         = "0c7a6a3e-58a1-4f3c-9c52-000000000001"
	foreignReleasedUID = "0c7a6a3e-58a1-4f3c-9c52-000000000002"
)

// foreignFiles are files of an engine's folder that are not this world's.
type foreignFiles map[string]string

// foreignServers are those servers on the fake engine, and a file that does not describe a server.
var foreignServers = foreignFiles{
	foreignUID + ".json":                            `{"clusterID": "another", "namespace": "default", "name": "vm-1", "state": "Running", "load": 0}`,
	"retained/" + foreignReleasedUID + ".fake.json": `{"clusterID": "another", "namespace": "default", "name": "vm-1", "retained": true, "load": 0}`,
	"notes.txt": "not a server",
}

// foreignMachines are the same with the driver qemu.
var foreignMachines = foreignFiles{
	filepath.Join(instance.VMsDir, foreignUID, instance.RecordFile):                           foreignMachine(foreignUID),
	filepath.Join(instance.VMsDir, foreignUID, instance.RootDiskFile):                         "the disk of another cluster",
	filepath.Join(instance.RetainedDir, foreignReleasedUID+".another", instance.RecordFile):   foreignMachine(foreignReleasedUID),
	filepath.Join(instance.RetainedDir, foreignReleasedUID+".another", instance.RootDiskFile): "the disk of another cluster",
	"notes.txt": "not a machine",
}

func foreignMachine(uid string) string {
	return `{"format": ` + strconv.Itoa(record.Format) + `, "clusterID": "another", "uid": "` + uid + `", "id": "another", "namespace": "default", "name": "vm-1", "epoch": 1}`
}

// write puts the files into an engine's folder.
func (f foreignFiles) write(dir string) error {
	for name, content := range f {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// check returns which of the files are not as they were (O6).
func (f foreignFiles) check(dir string) (broken []Violation) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != f[name] {
			broken = append(broken, rules.Broken(rules.O6, "%s, which is not Drover's, is %q, %v", name, got, err))
		}
	}
	return broken
}

// foreignContainer is a container of another cluster, and its inspection.
type foreignContainer struct{ id, inspection string }

// startForeignContainer starts a container for a VirtualMachine of the same name in another
// cluster, whose id is made of this one's: no other world has it.
func startForeignContainer(ctx context.Context, c *client.Client, w *World) (f foreignContainer, err error) {
	created, err := c.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: "another-" + w.ClusterID,
		Config: &container.Config{Image: framework.GuestPlain, Labels: map[string]string{
			docker.LabelCluster: "another-" + w.ClusterID, docker.LabelUID: foreignUID,
			docker.LabelNamespace: w.Name, docker.LabelName: "vm-1",
		}},
	})
	if err != nil {
		return f, err
	}
	f.id = created.ID
	_, err = c.ContainerStart(ctx, f.id, client.ContainerStartOptions{})
	if err == nil {
		f.inspection, err = f.inspect(ctx, c)
	}
	return f, err
}

func (f foreignContainer) inspect(ctx context.Context, c *client.Client) (string, error) {
	found, err := c.ContainerInspect(ctx, f.id, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(found.Container)
	return string(text), err
}

// check returns whether the container is not as it was (O6).
func (f foreignContainer) check(ctx context.Context, c *client.Client) []Violation {
	got, err := f.inspect(ctx, c)
	if err == nil && got == f.inspection {
		return nil
	}
	return []Violation{rules.Broken(rules.O6, "the container of another cluster was %s, and is %s, %v", f.inspection, cmp.Or(got, "unknown"), err)}
}

// remove removes the container, if there is one.
func (f foreignContainer) remove(ctx context.Context, c *client.Client) error {
	if f.id == "" {
		return nil
	}
	_, err := c.ContainerRemove(ctx, f.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// startForeignRegistry starts a registry without images, as long as the tests run.
func startForeignRegistry() (address string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	answer := func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		if strings.Trim(req.URL.Path, "/") != "v2" {
			rw.WriteHeader(http.StatusNotFound)
		}
		_, _ = fmt.Fprintf(rw, `{"errors": [{"code": "MANIFEST_UNKNOWN", "message": %q}]}`, foreignAnswer)
	}
	server := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), nil
}
