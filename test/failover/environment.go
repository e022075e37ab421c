// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/fleet"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/framework/users"
	"cloudnative.tw/drover/test/tier"
)

const (
	// restartDelay is the time from a process's end to the next one's start.
	restartDelay = 200 * time.Millisecond
	// pollPeriod is the time between checks of processes, and between reads of the journal.
	pollPeriod = 5 * time.Millisecond
)

// size is the size of an environment in a tier: the number of users, how many of them have a server
// with slow calls, and the settings of the replicas' Lease.
type size struct {
	users, slow int
	lease       leader.Settings
}

var (
	// gateSize has a Lease that is not lost even on a busy host.
	gateSize = size{6, 2, leader.Settings{Lease: 8 * time.Second, Renew: 3 * time.Second, Retry: 500 * time.Millisecond}}
	fullSize = size{14, 4, leader.Settings{Lease: 3 * time.Second, Renew: 1500 * time.Millisecond, Retry: 250 * time.Millisecond}}
)

func currentSize() size {
	if tier.IsFull() {
		return fullSize
	}
	return gateSize
}

// latencies are the latencies of the fake engine for each replica. With a short latency a call
// of a halted process takes effect as soon as the process is resumed. A call with a long latency
// is likely to be interrupted.
var latencies = []string{"20ms", "50ms", "200ms"}

// environment is a cluster, replicas, and users whose requests keep them busy.
type environment struct {
	*testenv.Environment
	replicas *fleet.Fleet
	// commands start the replicas, and proxies lead each to the API server, by their names.
	commands map[string]fleet.Command
	proxies  map[string]*framework.APIProxy
	users    []*users.User
	requests *users.Log
	size
	// unjudged says that users' requests need not become complete.
	unjudged bool
	// dir contains the results of the run: journal, logs and objects.
	dir, journal string
}

// newEnvironment returns an environment of the fake engine, whose calls take long enough for
// faults to occur during them.
func newEnvironment(t testing.TB, binary, dir string, seed uint64) *environment {
	t.Helper()
	w := newEmptyEnvironment(t, dir)
	w.addUsers(w.size.users, seed)
	var slow strings.Builder
	for _, u := range w.users[:w.slow] {
		fmt.Fprintf(&slow, "%s: {latency: 700ms}\n", u.Name)
	}
	for _, latency := range latencies {
		faults := filepath.Join(dir, "faults-"+latency+".yaml")
		assert.NoError(t, os.WriteFile(faults, fmt.Appendf(nil, "\"*\": {latency: %s}\n%s", latency, &slow), 0o600))
		w.addReplica(t, binary, nil,
			"--vm-driver=fake", "--fake-dir="+w.FakeDir, "--fake-journal="+w.journal, "--fake-faults="+faults,
			"--fake-boot-time=50ms", "--fake-shutdown-time=50ms")
	}
	return w
}

// newEmptyEnvironment returns an environment without users and replicas.
func newEmptyEnvironment(t testing.TB, dir string) *environment {
	t.Helper()
	w := &environment{
		Environment: testenv.Start(t), commands: map[string]fleet.Command{}, proxies: map[string]*framework.APIProxy{},
		requests: &users.Log{}, size: currentSize(), dir: dir, journal: filepath.Join(dir, "journal"),
	}
	w.replicas = fleet.New(restartDelay, func(replica string, _ int) (fleet.Command, error) { return w.commands[replica], nil }, nil)
	assert.NoError(t, os.WriteFile(w.journal, nil, 0o600))
	return w
}

// addUsers adds users.
func (w *environment) addUsers(count int, seed uint64) {
	for n := range count {
		w.users = append(w.users, &users.User{
			VMs: w.VMsIn(metav1.NamespaceDefault), Log: w.requests,
			Random: users.NewRandom(seed, uint64(100+n)), Name: fmt.Sprintf("vm-%d", n),
		})
	}
}

func (w *environment) addReplica(t testing.TB, program string, user *syscall.Credential, args ...string) {
	t.Helper()
	name, proxy := fmt.Sprintf("replica-%d", len(w.commands)), w.NewAPIProxy(t)
	w.proxies[name], w.commands[name] = proxy, fleet.Command{
		Program: program, User: user, Env: []string{testenv.ControllerEnv + "=1"},
		Args: append(args, w.commonArgs("--kubeconfig="+proxy.Kubeconfig)...),
	}
}

// commonArgs returns the flags of all replicas. They postpone the orphan sweep by a day, so that
// orphans are noticed.
func (w *environment) commonArgs(more ...string) []string {
	return append(more,
		"--orphan-grace=24h",
		"--leader-elect-lease-duration="+w.lease.Lease.String(), "--leader-elect-renew-deadline="+w.lease.Renew.String(),
		"--leader-elect-retry-period="+w.lease.Retry.String(),
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "-v=1",
	)
}

// faultFunc injects faults into an environment, and returns them.
type faultFunc func(ctx context.Context, w *environment) ([]Fault, error)

// runWithFaults lets users send requests while faults are injected, then waits until all
// requests are complete, and collects the evidence.
func (w *environment) runWithFaults(t testing.TB, inject faultFunc) Evidence {
	t.Helper()
	begin := time.Now()
	cluster, stopCluster := context.WithCancel(t.Context())
	defer stopCluster()
	var recorder, userGroup sync.WaitGroup
	for name := range w.commands {
		_, err := w.replicas.Start(name)
		assert.ReportError(t, err)
	}
	recorder.Go(func() { assert.ReportError(t, w.recordObjects(cluster)) })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop := make(chan struct{})
	for _, u := range w.users {
		userGroup.Go(func() {
			if err := u.Run(ctx, stop); !w.unjudged {
				assert.ReportError(t, err)
			}
		})
	}
	faults, err := inject(ctx, w)
	assert.ReportError(t, err)
	close(stop)
	if w.unjudged {
		cancel()
	}
	userGroup.Wait()
	e := w.gatherEvidence(t)
	w.replicas.Stop(syscall.SIGTERM)
	stopCluster()
	recorder.Wait()
	e.Faults, e.Processes = faults, w.replicas.Processes()
	w.storeLogs(t)
	t.Logf("the environment lasted %s", time.Since(begin).Round(time.Second))
	return e
}

// gatherEvidence records the final state before the replicas are stopped.
func (w *environment) gatherEvidence(t testing.TB) Evidence {
	t.Helper()
	e := Evidence{Evidence: rules.Evidence{Requested: w.requests.Requested(), VMs: map[types.UID]*api.VirtualMachine{}}}
	for _, r := range w.ReadFakeServers(t) {
		e.Servers = append(e.Servers, rules.ServerOf(r, time.Now()))
	}
	list, err := w.VMsIn("").List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	for n := range list.Items {
		e.VMs[list.Items[n].UID] = &list.Items[n]
	}
	e.Journal, err = rules.Read(w.journal, new(int64))
	assert.NoError(t, err)
	return e
}

// recordObjects stores the VirtualMachines in a file, for people who look for the cause of a
// violation.
func (w *environment) recordObjects(ctx context.Context) error {
	f, err := os.Create(filepath.Join(w.dir, "objects"))
	if err != nil {
		return err
	}
	changes, err := w.WatchVMs(ctx, metav1.NamespaceDefault, "", "")
	if err != nil {
		return errors.Join(err, f.Close())
	}
	lines := json.NewEncoder(f)
	for change := range changes.ResultChan() {
		if vm, ok := change.Object.(*api.VirtualMachine); ok {
			vm.ManagedFields = nil
		}
		_ = lines.Encode(struct {
			At    time.Time
			Event watch.Event
		}{time.Now().UTC(), change})
	}
	return f.Close()
}

// storeLogs stores the replicas' output in the folder of the journal, and checks that the
// journal is complete.
func (w *environment) storeLogs(t testing.TB) {
	t.Helper()
	output := w.replicas.Output()
	assert.ReportError(t, os.WriteFile(filepath.Join(w.dir, "replicas.log"), []byte(output), 0o600))
	assert.True(t, !strings.Contains(output, journal.EntryLost), "a replica could not write an entry into the journal")
	for _, text := range w.replicas.Failures() {
		t.Error(text)
	}
}
