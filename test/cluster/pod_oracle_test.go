// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/rules"
)

// machineOracle constantly checks the containers of all nodes, regardless of the API: the containers
// of two pods of one VirtualMachine must never run at the same time.
type machineOracle struct {
	mu sync.Mutex
	// seen has the pods whose containers have run at any time.
	seen  map[types.UID]bool
	found []rules.Violation
	// excepted has the pods that may run beside the next pod of their VirtualMachine, and whether they did.
	excepted map[types.UID]bool
}

// oraclePeriod is the time between two checks. A machine takes seconds to start and to end.
const oraclePeriod = 50 * time.Millisecond

func newMachineOracle() *machineOracle {
	return &machineOracle{seen: map[types.UID]bool{}, excepted: map[types.UID]bool{}}
}

// startMachineOracle starts an oracle that fails the test at its end if two machines ran at the same time.
func startMachineOracle(t *testing.T) *machineOracle {
	t.Helper()
	o := newMachineOracle()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			o.look()
			select {
			case <-stop:
				return
			case <-time.After(oraclePeriod):
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
		for _, v := range o.found {
			t.Error(v)
		}
	})
	return o
}

func (o *machineOracle) look() { o.judge(runningMachines()) }

// judge records violations among the pods, by name, in which machines run.
func (o *machineOracle) judge(running map[string]map[types.UID]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, pods := range running {
		for uid := range pods {
			o.seen[uid] = true
			if _, ok := o.excepted[uid]; ok && len(pods) > 1 {
				o.excepted[uid] = true
				delete(pods, uid)
			}
		}
		if len(pods) > 1 {
			o.found = append(o.found, rules.Broken(rules.OneServer, "at %s containers of %d pods %s run: %v", time.Now().Format(time.TimeOnly), len(pods), name, pods))
		}
	}
}

// except allows one pod to run beside the next one, since an operator wrongly asserts that the pod is off. The
// exception lasts until the returned function is called, which reports whether both pods ran.
func (o *machineOracle) except(pod types.UID) (end func() bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.excepted[pod] = false
	return func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		ran := o.excepted[pod]
		delete(o.excepted, pod)
		return ran
	}
}

// checkSeen checks that the oracle sees the container of a pod that runs.
func (o *machineOracle) checkSeen(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	assert.Eventually(t, "the oracle sees "+string(pod.UID), func(testing.TB) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		return assert.ErrorUnless(o.seen[pod.UID], "the oracle has seen %v", o.seen)
	})
}

// podInGroup finds the UID of a pod in the name of a control group.
var podInGroup = regexp.MustCompile(`/pod([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/`)

// runningMachines returns the UIDs of the cluster's pods in which drover-machine runs, by the pods' names. The
// pods of one VirtualMachine have the same name, which is also their hostname. The environment of a zombie
// process is empty.
func runningMachines() map[string]map[types.UID]bool {
	all := map[string]map[types.UID]bool{}
	group := []byte(":" + shared.ControlGroup("") + "/") // this host may run other clusters
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range names {
		if comm, _ := os.ReadFile(path); string(comm) != "drover-machine\n" {
			continue
		}
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if !bytes.Contains(groups, group) {
			continue
		}
		environment, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		uid := podInGroup.FindSubmatch(groups)
		for variable := range bytes.SplitSeq(environment, []byte{0}) {
			name, ok := bytes.CutPrefix(variable, []byte("HOSTNAME="))
			if !ok || uid == nil {
				continue
			}
			if all[string(name)] == nil {
				all[string(name)] = map[types.UID]bool{}
			}
			all[string(name)][types.UID(uid[1])] = true
		}
	}
	return all
}

// TestMachineOracle checks that an exception is only for one pod, and only until it ends.
func TestMachineOracle(t *testing.T) {
	for name, c := range map[string]struct {
		pods          []types.UID
		isOver        bool
		finds, beside bool
	}{
		"one machine":                     {pods: []types.UID{"a"}},
		"the excepted one":                {pods: []types.UID{"x"}},
		"the excepted one beside another": {pods: []types.UID{"x", "a"}, beside: true},
		"two others":                      {pods: []types.UID{"a", "b"}, finds: true},
		"two others beside it":            {pods: []types.UID{"x", "a", "b"}, finds: true, beside: true},
		"after the exception":             {pods: []types.UID{"x", "a"}, isOver: true, finds: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := newMachineOracle()
			endException := o.except("x")
			if c.isOver {
				endException()
			}
			pods := map[types.UID]bool{}
			for _, uid := range c.pods {
				pods[uid] = true
			}
			o.judge(map[string]map[types.UID]bool{"vm": pods, "other": {"o": true}})
			assert.True(t, len(o.found) > 0 == c.finds, "the oracle finds %v", o.found)
			assert.Equal(t, "the excepted pod ran beside another", endException(), c.beside)
		})
	}
}
