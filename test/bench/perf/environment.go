// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/moby/moby/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// cleanTimeout bounds the removal of containers at the end.
const cleanTimeout = 2 * time.Minute

// environment is an API server with measured VMs, and idle ones among which others are created.
type environment struct {
	*bench.Environment
	benchmark *benchmark
	vms, idle *bench.VMs
	id        string // of the cluster, as containers carry it
}

func (b *benchmark) newEnvironment(ctx context.Context, opts framework.ClusterOptions) (*environment, error) {
	e, err := bench.NewEnvironment(ctx, opts, "bench", "idle")
	if err != nil {
		return nil, err
	}
	system, err := e.Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &environment{e, b, e.VMsIn("bench", b.AtOnce), e.VMsIn("idle", b.AtOnce), string(system.UID)}, nil
}

// close removes containers too, which are there only if a suite failed.
func (w *environment) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	err := w.Close()
	if engine, openErr := client.New(client.FromEnv); openErr == nil {
		removeLabelled(ctx, engine, docker.LabelCluster+"="+w.id)
		_ = engine.Close()
	}
	return err
}

// startDrover starts a controller, which is the only one.
func (w *environment) startDrover(ctx context.Context, env []string, args ...string) (*bench.Controller, error) {
	all := append([]string{"--docker-image=" + framework.GuestPlain}, args...)
	return w.StartController(ctx, w.benchmark.Controller, env, append(all, w.benchmark.Flags...)...)
}
