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
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// State has the results of a workload. All but Unreported must be the same in all runs.
type State struct {
	// VMs are the statuses by name, without the parts that differ from run to run.
	VMs map[string]string
	// Servers are the servers' states and settings.
	Servers []string
	Effects map[string]Effects
	// Unreported counts the runs that no status has ever named. The number depends on the time of a fault.
	Unreported map[string]int
}

// Differences returns the differences between a state and that of a run without faults (rules.AsRequested).
func (s State) Differences(want State) []string {
	all := differences("%s is %s, want %s", s.VMs, want.VMs)
	if got, want := strings.Join(s.Servers, "\n"), strings.Join(want.Servers, "\n"); got != want {
		all = append(all, fmt.Sprintf("the servers are %s, want %s", got, want))
	}
	return append(all, differences("%s had %+v, want %+v", s.Effects, want.Effects)...)
}

// differences formats the entries that differ between the maps.
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

// Evidence is the input of JudgeEvidence that the world itself does not have.
type Evidence struct {
	Engine    Engine
	Processes []rules.Process
	// Output is the output of the processes.
	Output string
	// Decisions are the last decisions, in sentences.
	Decisions string
	// Failures are the reasons for which processes ended by themselves.
	Failures []string
}

// Judge returns the state of a world at rest, and the rules that were broken.
func (w *World) Judge(ctx context.Context, r *Replicas) (State, []Violation, error) {
	state, broken, err := w.JudgeEvidence(ctx, Evidence{r.plan.Engine, r.Processes(), r.Output(), r.Decisions(), r.Failures()})
	return state, append(r.BrokenAtCrashes(), broken...), err
}

// JudgeEvidence is Judge for processes that are not Replicas.
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
		all = append(all, rules.Broken(rules.Converges, "a process ended by itself: %s", text))
	}
	secrets, err := w.checkSecrets(ctx, e, seen, versions)
	if err != nil {
		return State{}, nil, err
	}
	if all = append(all, secrets...); len(all) == 0 { // last, since callers repeat this until no rule is broken
		all, err = w.replayDecisions()
	}
	return stateOf(now, seen), all, err
}

// checkProtected reads the API live and checks that each server has a VirtualMachine with
// the finalizer. Otherwise the server would leak if the object were deleted before a controller runs again.
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
			all = append(all, rules.Broken(rules.NoOrphans, "after a crash the server of %s lacks a VirtualMachine with a finalizer", s.Name))
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

// comparableStatus formats a status without the parts that differ from run to run.
func comparableStatus(vm *api.VirtualMachine) string {
	s := vm.Status
	var text strings.Builder
	fmt.Fprintf(&text, "phase=%s reason=%s generation=%d/%d restarts=%d pending=%v restarted=%v server=%v finalizers=%v",
		s.Phase, s.Reason, s.ObservedGeneration, vm.Generation, s.RestartCount, s.PendingFields, s.RestartedAt != nil, s.Server != nil, vm.Finalizers)
	for _, c := range s.Conditions {
		if c.Type == api.ConditionConfined {
			continue // its reason is Unknown after a crash right after QEMU's start
		}
		fmt.Fprintf(&text, " %s=%s/%s", c.Type, c.Status, c.Reason)
	}
	if s.Operation != nil {
		fmt.Fprintf(&text, " operation=%s", s.Operation.Type)
	}
	return text.String()
}

// Settle calls judge until no rule is broken, since Drover may need time for its work, for
// example an orphan's grace period. It returns the violations of the last call.
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

// atRest describes the state that WaitRest waits for.
const atRest = "nothing is written at rest"

// WaitRest waits until nothing is written for a while (rules.QuietAtRest). Writes to the resources in except do not
// count. It tolerates late writes, such as an event that client-go sends again. Package schedules,
// which has a simulated clock, allows no write at all.
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
			return fmt.Errorf("the writes in %s are %v", during, after[before:])
		}
		return ctx.Err()
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &NotConvergedError{atRest, err}
}

// ViolationOf returns the violation that a NotConvergedError stands for, or nil for other errors.
func ViolationOf(err error) *Violation {
	late, ok := errors.AsType[*NotConvergedError](err)
	switch {
	case !ok:
		return nil
	case strings.HasSuffix(late.What, "is gone"):
		return &Violation{Rule: rules.DeletionEnds, Text: late.Error()}
	case late.What == atRest:
		return &Violation{Rule: rules.QuietAtRest, Text: late.Error()}
	}
	return &Violation{Rule: rules.Converges, Text: late.Error()}
}

// readJournal adds to o what a driver's journal shows: effects, first creations, and the rules that were broken.
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

// checkNotLate checks that no server was created for a VirtualMachine that was already gone,
// even if the sweep has removed the server since.
func (w *World) checkNotLate(uid types.UID, entries []journal.Entry) (broken []Violation) {
	w.mu.Lock()
	gone, isGone := w.gone[string(uid)]
	w.mu.Unlock()
	for _, entry := range rules.ByServer(entries)[uid] {
		if isGone && entry.Action == journal.ActionCreate && entry.At.After(gone) {
			broken = append(broken, rules.Broken(rules.NoOrphans, "%s, but the VirtualMachine was gone at %s", rules.DescribeEntry(entry), gone.UTC().Format(time.StampMilli)))
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

// Secret texts, which no log, event, status, decision or command line may contain (rules.Confidential).
const (
	// Secret is in the user-data.
	Secret = "drover-secret-5c1b"
	// token is in the kubeconfig.
	token = "drover-token-90ae"
	// foreignAnswer is in the answers of a registry.
	foreignAnswer = "drover-answer-77d2"
)

// secretTexts has the secret texts by their descriptions.
var secretTexts = map[string]string{"user-data": Secret, "the token of the kubeconfig": token, "the answer of a registry": foreignAnswer}

// checkSecrets looks for the secret texts in everything that people can read.
func (w *World) checkSecrets(ctx context.Context, e Evidence, seen Observed, versions []*api.VirtualMachine) ([]Violation, error) {
	events, err := w.KubeClient.EventsV1().Events(w.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	decisions, err := readMatching(filepath.Join(w.Dir, decisionsFiles))
	if err != nil {
		return nil, err
	}
	return rules.CheckSecrets(secretTexts, map[string]any{
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

// decisionsFiles matches all files with decisions, including rotated ones.
const decisionsFiles = "decisions-*"

// decisionsFile is the file in which process n records its decisions. Processes that run
// one after the other may share a file.
func (w *World) decisionsFile(n int) string {
	return filepath.Join(w.Dir, fmt.Sprintf("decisions-%d", n))
}

// RecordDecisions returns the flag that makes a controller write to decisionsFile.
func (w *World) RecordDecisions(n int) string { return "--decisions=" + w.decisionsFile(n) }

// Decisions returns the last decisions of the processes below a number, in sentences.
func (w *World) Decisions(processes int) string {
	var paths []string
	for n := range processes {
		paths = append(paths, w.decisionsFile(n))
	}
	all, err := rules.ReadDecisions(paths...)
	if err != nil {
		return "the decisions cannot be read: " + err.Error()
	}
	return rules.FormatDecisions(all)
}

// replayDecisions derives all recorded decisions again, and returns those that differ
// (rules.Reproducible).
func (w *World) replayDecisions() ([]Violation, error) {
	if w.PolicyDiffers {
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

// The UIDs of two servers of another cluster, the second of which was released.
const (
	foreignUID         = "0c7a6a3e-58a1-4f3c-9c52-000000000001"
	foreignReleasedUID = "0c7a6a3e-58a1-4f3c-9c52-000000000002"
)

// foreignFiles are files in an engine's folder that do not belong to this world.
type foreignFiles map[string]string

// foreignServers are servers of another cluster on the fake engine, and a file that is not a server's.
var foreignServers = foreignFiles{
	foreignUID + ".json":                            `{"clusterID": "another", "namespace": "default", "name": "vm-1", "state": "Running", "load": 0}`,
	"retained/" + foreignReleasedUID + ".fake.json": `{"clusterID": "another", "namespace": "default", "name": "vm-1", "retained": true, "load": 0}`,
	"notes.txt": "not a server",
}

// foreignMachines are machines of another cluster on the engine qemu, and a file that is not a machine's.
var foreignMachines = foreignFiles{
	filepath.Join(instance.VMsDir, foreignUID, instance.RecordFile):                           foreignMachine(foreignUID),
	filepath.Join(instance.VMsDir, foreignUID, instance.RootDiskFile):                         "the disk of another cluster",
	filepath.Join(instance.RetainedDir, foreignReleasedUID+".another", instance.RecordFile):   foreignMachine(foreignReleasedUID),
	filepath.Join(instance.RetainedDir, foreignReleasedUID+".another", instance.RootDiskFile): "the disk of another cluster",
	"notes.txt": "not a machine",
}

func foreignMachine(uid string) string {
	return `{"clusterID": "another", "uid": "` + uid + `", "id": "another", "namespace": "default", "name": "vm-1", "epoch": 1}`
}

// write writes the files into an engine's folder.
func (f foreignFiles) write(dir string) error {
	for name, content := range f {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// check returns a violation for each file that was changed or removed (rules.OthersUntouched).
func (f foreignFiles) check(dir string) (broken []Violation) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != f[name] {
			broken = append(broken, rules.Broken(rules.OthersUntouched, "%s, which is not Drover's, is now %q, error %v", name, got, err))
		}
	}
	return broken
}

// foreignContainer is a container of another cluster, and the result of inspecting it.
type foreignContainer struct{ id, inspection string }

// startForeignContainer starts a container for a VirtualMachine of the same name in another
// cluster. The other cluster's id is derived from this one's, so that it is unique.
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

// check returns a violation if the container was changed or removed (rules.OthersUntouched).
func (f foreignContainer) check(ctx context.Context, c *client.Client) []Violation {
	got, err := f.inspect(ctx, c)
	if err == nil && got == f.inspection {
		return nil
	}
	return []Violation{rules.Broken(rules.OthersUntouched, "the container of another cluster was %s, and is %s, %v", f.inspection, cmp.Or(got, "unknown"), err)}
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

// startForeignRegistry starts a registry without images, which runs until this process ends.
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
