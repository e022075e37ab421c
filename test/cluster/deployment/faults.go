// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fault is something that happens to a deployment, in most cases to its leader.
type Fault struct {
	Name string
	// ChangesLeader says that another replica leads afterwards.
	ChangesLeader bool
	// Releases says that the leader ends in good order, and releases the Lease.
	Releases bool
	// Inject lets it happen. What it returns undoes it; nil means that there is nothing to
	// undo.
	Inject func(ctx context.Context, d *Deployment, leader string) (undo func(context.Context) error, err error)
}

// Faults are all that there are.
func Faults() []Fault {
	return []Fault{
		{Name: "pod deleted", ChangesLeader: true, Releases: true, Inject: deletePod},
		{Name: "node drained", ChangesLeader: true, Releases: true, Inject: drainNode},
		{Name: "image exchanged", ChangesLeader: true, Releases: true, Inject: exchangeImage},
		{Name: "process killed", ChangesLeader: true, Inject: killProcess},
		{Name: "process stopped", ChangesLeader: true, Inject: stopProcess},
		{Name: "node powered off", ChangesLeader: true, Inject: powerOffNode},
		{Name: "node cut off", ChangesLeader: true, Inject: cutOffNode},
		{Name: "kubelet killed", Inject: killKubelet},
		{Name: "API server restarted", Inject: restartAPIServer},
	}
}

func deletePod(ctx context.Context, d *Deployment, leader string) (func(context.Context) error, error) {
	return nil, d.Kube.CoreV1().Pods(namespace).Delete(ctx, leader, metav1.DeleteOptions{})
}

func killProcess(_ context.Context, _ *Deployment, leader string) (func(context.Context) error, error) {
	process, err := findProcess(leader)
	if err != nil {
		return nil, err
	}
	return nil, process.Signal(syscall.SIGKILL)
}

// stopProcess halts the leader. When it continues, it has been deposed. On a busy machine
// the kubelet may have killed it before, because it does not answer its liveness probe.
func stopProcess(_ context.Context, _ *Deployment, leader string) (func(context.Context) error, error) {
	process, err := findProcess(leader)
	if err != nil {
		return nil, err
	}
	undo := func(context.Context) error {
		if err := process.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		return nil
	}
	return undo, process.Signal(syscall.SIGSTOP)
}

func powerOffNode(ctx context.Context, d *Deployment, leader string) (func(context.Context) error, error) {
	node, err := d.nodeOf(ctx, leader)
	if err != nil {
		return nil, err
	}
	return ignoreContext(node.PowerOn), node.PowerOff()
}

func cutOffNode(ctx context.Context, d *Deployment, leader string) (func(context.Context) error, error) {
	node, err := d.nodeOf(ctx, leader)
	if err != nil {
		return nil, err
	}
	return ignoreContext(node.RestoreLink), node.CutLink()
}

func drainNode(ctx context.Context, d *Deployment, leader string) (func(context.Context) error, error) {
	node, err := d.nodeOf(ctx, leader)
	if err != nil {
		return nil, err
	}
	return node.Uncordon, node.Drain(ctx)
}

func killKubelet(ctx context.Context, d *Deployment, leader string) (func(context.Context) error, error) {
	node, err := d.nodeOf(ctx, leader)
	if err != nil {
		return nil, err
	}
	return ignoreContext(node.StartKubelet), node.KillKubelet()
}

// exchangeImage upgrades the release to the other image, or back.
func exchangeImage(ctx context.Context, d *Deployment, _ string) (func(context.Context) error, error) {
	next := imageOther
	if d.image == imageOther {
		next = imageDev
	}
	d.image = next
	return nil, d.upgrade(ctx, "--set", "image.tag="+next)
}

func restartAPIServer(ctx context.Context, d *Deployment, _ string) (func(context.Context) error, error) {
	return nil, d.Cluster.RestartAPIServer(ctx)
}

func ignoreContext(do func() error) func(context.Context) error {
	return func(context.Context) error { return do() }
}

// findProcess returns the process of the controller in a pod.
func findProcess(pod string) (*os.Process, error) {
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	for _, link := range programs {
		// A process that has ended meanwhile has no files.
		if program, err := os.Readlink(link); err != nil || program != "/drover-controller" {
			continue
		}
		dir := filepath.Dir(link)
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err == nil && strings.Contains("\x00"+string(environ), "\x00POD_NAME="+pod+"\x00") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return nil, err
			}
			return os.FindProcess(pid)
		}
	}
	return nil, fmt.Errorf("pod %s has no process", pod)
}
