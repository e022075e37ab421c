// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// childEnv is the variable with the options of the cluster that a child process starts, and closes
// when it gets SIGTERM.
const childEnv = "DROVER_TEST_CLUSTER_CHILD"

func runChild(options string) int {
	var opts cluster.Options
	err := json.Unmarshal([]byte(options), &opts)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var c *cluster.Cluster
	if err == nil {
		c, err = cluster.New(ctx, opts)
	}
	if err == nil {
		fmt.Println("ready")
		<-ctx.Done()
		err = c.Close()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// startChild starts a process that starts a cluster, and returns when the cluster is ready.
func startChild(t *testing.T, opts cluster.Options) *exec.Cmd {
	t.Helper()
	cmd, output := startChildOnly(t, opts)
	lines := bufio.NewScanner(output)
	assert.Require(t, lines.Scan() && lines.Text() == "ready", "the child printed %q", lines.Text())
	return cmd
}

// startChildOnly starts a process that starts a cluster, and does not wait for the cluster.
func startChildOnly(t *testing.T, opts cluster.Options) (*exec.Cmd, io.Reader) {
	t.Helper()
	options, err := json.Marshal(opts)
	assert.NoError(t, err)
	self, err := os.Executable()
	assert.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(options))
	output, err := cmd.StdoutPipe()
	assert.NoError(t, err)
	assert.NoError(t, cmd.Start())
	return cmd, output
}

// leftovers returns the leftovers of a cluster, as leftovers.sh prints them, and settings of the
// kernel. Other clusters may exist.
func leftovers(t testing.TB, p plan.Plan) (left, settings []string) {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "test", "cluster", "leftovers.sh")).Output()
	assert.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		switch {
		case strings.HasPrefix(line, "setting "):
			settings = append(settings, line)
		case strings.Contains(line, p.Name), strings.Contains(line, p.Dir), line == "interface "+p.HostLink()+"\n":
			left = append(left, line)
		}
	}
	return left, settings
}

// checkSeen checks that the script finds every kind of thing of a running cluster.
func checkSeen(t *testing.T, left []string) {
	t.Helper()
	all := strings.Join(left, "")
	for _, kind := range []string{"control group", "interface", "etcd", "kube-apiserver", "containerd", "kubelet", "kube-proxy", "drover-cluster rig"} {
		assert.Contains(t, "leftovers.sh finds no "+kind+" of a cluster that runs:\n", all, kind)
	}
}

// TestNothingIsLeft starts clusters beside the other tests' cluster and ends them in every way. A
// detached cluster outlives the process that has started it.
func TestNothingIsLeft(t *testing.T) {
	tier.Full(t, "it starts further clusters; it tests the clusters of tests and nothing of Drover")
	for name, c := range map[string]struct {
		isDetached bool
		end        func(*testing.T, *exec.Cmd, *cluster.Cluster) error
	}{
		"process killed": {end: func(_ *testing.T, cmd *exec.Cmd, _ *cluster.Cluster) error {
			return cmd.Process.Kill()
		}},
		"cluster killed": {end: func(t *testing.T, cmd *exec.Cmd, _ *cluster.Cluster) error {
			return errors.Join(killChild(t, cmd, "drover-cluster rig"), cmd.Process.Kill())
		}},
		"all killed": {end: func(t *testing.T, cmd *exec.Cmd, c *cluster.Cluster) error {
			return errors.Join(killChild(t, cmd, "drover-cluster clean"), killChild(t, cmd, "drover-cluster rig"),
				cmd.Process.Kill(), cluster.ShutDown(c.Dir))
		}},
		"cleaner killed": {end: func(t *testing.T, cmd *exec.Cmd, _ *cluster.Cluster) error {
			return errors.Join(killChild(t, cmd, "drover-cluster clean"), cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
		}},
		"shut down": {end: func(_ *testing.T, cmd *exec.Cmd, c *cluster.Cluster) error {
			return errors.Join(c.Close(), cmd.Process.Kill())
		}},
		"detached": {isDetached: true, end: func(_ *testing.T, _ *exec.Cmd, c *cluster.Cluster) error { return c.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cluster")
			_, before := leftovers(t, plan.Plan{Name: dir, Dir: dir})
			cmd := startChild(t, cluster.Options{Nodes: 1, Dir: dir, Detached: c.isDetached})
			if c.isDetached {
				assert.NoError(t, cmd.Process.Kill())
			}
			checkEnd(t, dir, before, func(started *cluster.Cluster) error { return c.end(t, cmd, started) })
			_ = cmd.Wait()
		})
	}
}

// checkEnd ends a cluster and checks that nothing is left.
func checkEnd(t *testing.T, dir string, before []string, end func(*cluster.Cluster) error) {
	t.Helper()
	p, err := plan.Read(dir)
	assert.NoError(t, err)
	c, err := cluster.Open(t.Context(), dir)
	assert.NoError(t, err)
	ready, err := c.Node(1).IsReady(t.Context())
	assert.True(t, ready, "the node is not Ready: %v", err)
	left, settings := leftovers(t, p)
	checkSeen(t, left)
	assert.True(t, slices.Equal(before, settings), "the cluster changed %q to %q", before, settings)
	assert.ReportError(t, end(c))
	checkNothingLeft(t, p, before)
}

func checkNothingLeft(t *testing.T, p plan.Plan, before []string) {
	t.Helper()
	assert.Eventually(t, "nothing is left", func(t testing.TB) error {
		left, settings := leftovers(t, p)
		return assert.ErrorUnless(len(left) == 0 && slices.Equal(before, settings), "%q, settings before %q, after %q", left, before, settings)
	})
	assert.ErrorIs(t, "the folder is left", assert.ErrorOf(os.Stat(p.Dir)), os.ErrNotExist)
}

// killChild kills a child of a process, by its command line.
func killChild(t *testing.T, parent *exec.Cmd, command string) error {
	t.Helper()
	all, err := procfs.AllProcs()
	for _, p := range all {
		stat, statErr := p.Stat()
		line, lineErr := p.CmdLine()
		if statErr == nil && lineErr == nil && stat.PPID == parent.Process.Pid && strings.Contains(strings.Join(line, " "), command) {
			return syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("process %d lacks a child %s: %w", parent.Process.Pid, command, err)
}

// TestKilledStart checks that nothing is left of a cluster whose starting process was killed, even if
// the cluster was to be detached.
func TestKilledStart(t *testing.T) {
	tier.Full(t, "it starts further clusters; it tests the clusters of tests and nothing of Drover")
	dir := filepath.Join(t.TempDir(), "cluster")
	_, before := leftovers(t, plan.Plan{Name: dir, Dir: dir})
	cmd, _ := startChildOnly(t, cluster.Options{Nodes: 1, Dir: dir, Detached: true})
	t.Cleanup(func() { _ = cluster.ShutDown(dir) })
	var p plan.Plan
	assert.Eventually(t, "the cluster has its plan", func(testing.TB) (err error) {
		if _, err := os.Stat(filepath.Join(dir, "control.sock")); err != nil {
			return err
		}
		p, err = plan.Read(dir)
		return err
	})
	assert.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	checkNothingLeft(t, p, before)
}

func TestBadOptions(t *testing.T) {
	for want, opts := range map[string]cluster.Options{
		"1 to 9 nodes":      {Nodes: 10},
		"cannot be in /run": {Dir: "/run/x"},
		"file exists":       {Dir: t.TempDir()},
	} {
		_, err := cluster.New(t.Context(), opts)
		assert.True(t, err != nil && strings.Contains(err.Error(), want), "%+v: %v, want %q", opts, err, want)
	}
}
