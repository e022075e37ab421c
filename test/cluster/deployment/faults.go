// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/cluster"
)

// Fault is a fault of a deployment, in most cases of its leader.
type Fault struct {
	Name string
	// ChangesLeader says that another replica leads afterwards.
	ChangesLeader bool
	// Releases says that the leader ends cleanly and releases the Lease.
	Releases bool
	// Inject injects the fault. undo ends it; nil means that there is nothing to
	// undo.
	Inject func(ctx context.Context, d *Deployment, leader string) (undo func(context.Context) error, err error)
}

// Faults returns all faults.
func Faults() []Fault {
	return []Fault{
		{Name: "pod deleted", ChangesLeader: true, Releases: true, Inject: deletePod},
		{Name: "node drained", ChangesLeader: true, Releases: true, Inject: onNode((*cluster.Node).Drain, (*cluster.Node).Uncordon)},
		{Name: "image exchanged", ChangesLeader: true, Releases: true, Inject: exchangeImage},
		{Name: "process killed", ChangesLeader: true, Inject: killProcess},
		{Name: "process stopped", ChangesLeader: true, Inject: stopProcess},
		{Name: "node powered off", ChangesLeader: true, Inject: onNode(withoutContext((*cluster.Node).PowerOff), withoutContext((*cluster.Node).PowerOn))},
		{Name: "node cut off", ChangesLeader: true, Inject: onNode(withoutContext((*cluster.Node).CutLink), withoutContext((*cluster.Node).RestoreLink))},
		{Name: "kubelet killed", Inject: onNode(withoutContext((*cluster.Node).KillKubelet), withoutContext((*cluster.Node).StartKubelet))},
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

// stopProcess halts the leader until another replica leads. On a busy host the kubelet may
// kill it before, because it does not answer its liveness probe.
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

// onNode is a fault of the leader's node.
func onNode(inject, undo func(*cluster.Node, context.Context) error) func(context.Context, *Deployment, string) (func(context.Context) error, error) {
	return func(ctx context.Context, d *Deployment, leader string) (func(context.Context) error, error) {
		node, err := d.nodeOf(ctx, leader)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return undo(node, ctx) }, inject(node, ctx)
	}
}

// withoutContext adds a context parameter to a method of nodes.
func withoutContext(verb func(*cluster.Node) error) func(*cluster.Node, context.Context) error {
	return func(n *cluster.Node, _ context.Context) error { return verb(n) }
}

// exchangeImage upgrades the release to the other image, or back.
func exchangeImage(_ context.Context, d *Deployment, _ string) (func(context.Context) error, error) {
	next := imageOther
	if d.image == imageOther {
		next = imageDev
	}
	d.image = next
	return nil, d.upgrade("--wait", "--timeout", stepTimeout.String(), "--set", "image.tag="+next)
}

func restartAPIServer(ctx context.Context, d *Deployment, _ string) (func(context.Context) error, error) {
	return nil, d.Cluster.RestartAPIServer(ctx)
}

// findProcess returns the controller's process in a pod.
func findProcess(pod string) (*os.Process, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		// There is an error if the process has ended since it was listed.
		if program, err := p.Executable(); err != nil || program != "/drover-controller" {
			continue
		}
		if environ, err := p.Environ(); err == nil && slices.Contains(environ, "POD_NAME="+pod) {
			return os.FindProcess(p.PID)
		}
	}
	return nil, fmt.Errorf("pod %s lacks a process", pod)
}
