// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/framework"
)

// childEnv has the options of a cluster that a process starts and keeps until it is
// killed.
const childEnv = "DROVER_TEST_CLUSTER_CHILD"

func runChild(options string) int {
	var opts cluster.Options
	err := json.Unmarshal([]byte(options), &opts)
	if err == nil {
		_, err = cluster.New(context.Background(), opts)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	select {}
}

// startChild starts a process that starts a cluster, and returns when that is ready.
func startChild(t *testing.T, opts cluster.Options) *exec.Cmd {
	t.Helper()
	options, err := json.Marshal(opts)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(options))
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the child printed %q", lines.Text())
	}
	return cmd
}

// leftovers returns what a cluster has left, as hack/leftovers.sh prints it, and settings
// of the kernel. There may be other clusters.
func leftovers(t *testing.T, p plan.Plan) (left, settings []string) {
	t.Helper()
	root, err := framework.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "leftovers.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
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

// checkSeen checks that the script would find what is left of a cluster.
func checkSeen(t *testing.T, left []string) {
	t.Helper()
	all := strings.Join(left, "")
	for _, kind := range []string{"control group", "interface", "etcd", "kube-apiserver", "containerd", "kubelet", "kube-proxy", "drover-cluster rig"} {
		if !strings.Contains(all, kind) {
			t.Errorf("hack/leftovers.sh finds no %s of a cluster that runs:\n%s", kind, all)
		}
	}
}

// TestNothingIsLeft starts clusters beside the one of the other tests and ends them in
// every way.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *exec.Cmd, *cluster.Cluster) error{
		"process killed": func(_ *testing.T, cmd *exec.Cmd, _ *cluster.Cluster) error {
			return cmd.Process.Kill()
		},
		"cluster killed": func(t *testing.T, cmd *exec.Cmd, _ *cluster.Cluster) error {
			return errors.Join(killChild(t, cmd, "drover-cluster rig"), cmd.Process.Kill())
		},
		"all killed": func(t *testing.T, cmd *exec.Cmd, c *cluster.Cluster) error {
			return errors.Join(killChild(t, cmd, "drover-cluster clean"), killChild(t, cmd, "drover-cluster rig"),
				cmd.Process.Kill(), cluster.ShutDown(c.Dir))
		},
		"shut down": func(_ *testing.T, cmd *exec.Cmd, c *cluster.Cluster) error {
			return errors.Join(c.Close(), cmd.Process.Kill())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cluster")
			_, before := leftovers(t, plan.Plan{Name: dir, Dir: dir})
			cmd := startChild(t, cluster.Options{Nodes: 1, Dir: dir})
			checkEnd(t, dir, before, func(c *cluster.Cluster) error { return end(t, cmd, c) })
			_ = cmd.Wait()
		})
	}
}

// checkEnd ends a cluster and checks that nothing is left.
func checkEnd(t *testing.T, dir string, before []string, end func(*cluster.Cluster) error) {
	t.Helper()
	p, err := plan.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if ready, err := c.Node(1).IsReady(t.Context()); !ready {
		t.Errorf("its node is not Ready: %v", err)
	}
	left, settings := leftovers(t, p)
	checkSeen(t, left)
	if !slices.Equal(before, settings) {
		t.Errorf("the cluster changed %q to %q", before, settings)
	}
	if err := end(c); err != nil {
		t.Error(err)
	}
	framework.Eventually(t, wait, "nothing is left", func() error {
		if left, settings := leftovers(t, p); len(left) > 0 || !slices.Equal(before, settings) {
			return fmt.Errorf("%q, settings before %q, after %q", left, before, settings)
		}
		return nil
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
}

// killChild kills a child of a process, by its command line.
func killChild(t *testing.T, parent *exec.Cmd, command string) error {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "pgrep", "--parent", strconv.Itoa(parent.Process.Pid), "--full", command).Output()
	if err != nil {
		return fmt.Errorf("find %s: %w", command, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// TestDetached checks that a detached cluster outlives its starter and can be ended by
// another process.
func TestDetached(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	_, before := leftovers(t, plan.Plan{Name: dir, Dir: dir})
	cmd := startChild(t, cluster.Options{Nodes: 1, Dir: dir, Detached: true})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	checkEnd(t, dir, before, (*cluster.Cluster).Close)
}

func TestBadOptions(t *testing.T) {
	for want, opts := range map[string]cluster.Options{
		"1 to 9 nodes":      {Nodes: 10},
		"cannot be in /run": {Dir: "/run/x"},
		"file exists":       {Dir: t.TempDir()},
	} {
		if _, err := cluster.New(t.Context(), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", opts, err, want)
		}
	}
}
