// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/vmtest"
)

// crashEnv has, in a process that a test starts, the engine and the servers that
// it is to start.
const crashEnv = "DROVER_TEST_START_MACHINES"

type crashPlan struct {
	Dir, Images string
	Source      string
	UIDs        []types.UID
}

func TestMain(m *testing.M) {
	if plan := os.Getenv(crashEnv); plan != "" {
		startMachines(plan)
	}
	os.Exit(m.Run())
}

// startMachines is a controller that is killed while it is at work.
func startMachines(text string) {
	var plan crashPlan
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		panic(err)
	}
	d, err := New(Options{ClusterID: "cluster-1", Dir: plan.Dir, ImageDirs: []string{plan.Images}, Accel: AccelTCG})
	if err != nil {
		panic(err)
	}
	var all sync.WaitGroup
	for _, uid := range plan.UIDs {
		all.Go(func() { _, _ = d.Ensure(context.Background(), plan.spec(uid)) })
	}
	all.Wait()
	time.Sleep(time.Hour)
}

func (p crashPlan) spec(uid types.UID) driver.ServerSpec {
	e := engine{plain: p.Source}
	spec := e.spec()
	spec.UID = uid
	return spec
}

// TestControllerKilled : of ten machines that a controller was killed over, those
// that were there go on as they were, and each is there once in the end.
func TestControllerKilled(t *testing.T) {
	t.Parallel()
	for _, atLeast := range []int{1, 5, 10} {
		e := newEngine(t)
		plan := crashPlan{Dir: e.dir, Images: e.images, Source: e.plain}
		for range 10 {
			plan.UIDs = append(plan.UIDs, e.spec().UID)
		}
		text, err := json.Marshal(plan)
		must(t, err)
		d := e.open(t)
		controller := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this test itself
		controller.Env = append(os.Environ(), crashEnv+"="+string(text))
		must(t, controller.Start())
		vmtest.Eventually(t, patience, fmt.Sprintf("%d machines are there", atLeast), func() error {
			if n := len(machines(d, plan.UIDs)); n < atLeast {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		must(t, controller.Process.Kill())
		_ = controller.Wait()
		before := machines(d, plan.UIDs)
		for _, uid := range plan.UIDs {
			reach(t, d, plan.spec(uid), driver.StateRunning)
		}
		after := machines(d, plan.UIDs)
		for _, uid := range plan.UIDs {
			if len(after[uid]) != 1 {
				t.Errorf("server %s has the processes %v, want one", uid, after[uid])
			}
			if len(before[uid]) > 0 && before[uid][0] != after[uid][0] {
				t.Errorf("server %s was process %v and is %v", uid, before[uid], after[uid])
			}
		}
		t.Logf("killed with %d machines there", len(before))
		for _, uid := range plan.UIDs {
			if err := d.Delete(t.Context(), driver.Target{UID: uid}, false); err != nil && !errors.Is(err, driver.ErrNotFound) {
				t.Error(err)
			}
		}
	}
}

// machines are the processes of each server that has any.
func machines(d *Driver, uids []types.UID) map[types.UID][]int {
	all := processes()
	found := map[types.UID][]int{}
	for _, uid := range uids {
		for _, pid := range all {
			if d.home(uid).isOurs(pid, uid) {
				found[uid] = append(found[uid], pid)
			}
		}
	}
	return found
}
