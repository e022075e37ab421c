// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failover measures how fast another replica of drover-controller takes over when the leader
// is stopped or killed, without VMs and with many. It compares this with an unmodified elector of
// client-go.
//
// Start with measureWith in suite.go. handover.go has one change of leader, fleet.go the replicas,
// plain.go the elector to compare with, and figures.go the figures and the aims.
//
// Both are measured in the same way from outside: by watches of the Lease and the VMs in this
// process.
package failover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// Suites has a suite with a short Lease, and one with the default Lease.
var Suites = []bench.Suite{
	{Name: "failover", Turns: 20, VMs: []int{0, 10000}, Measure: bench.In(framework.ClusterOptions{}, measureWith(leader.Settings{
		Lease: 3 * time.Second, Renew: 1500 * time.Millisecond, Retry: 250 * time.Millisecond,
	}))},
	{Name: "failover-default", Turns: 10, VMs: []int{0}, Measure: bench.In(framework.ClusterOptions{}, measureWith(leader.DefaultSettings()))},
}

// The names of the fleets and of their Leases.
const (
	nameDrover = "drover"
	namePlain  = "client-go"
)

// replicas is the number of replicas of each fleet.
const replicas = 3

// benchmark is one run. Environment.VMs are created while there is no leader; Environment.Idle exist
// from the beginning.
type benchmark struct {
	*bench.Environment
	settings  leader.Settings
	vmLog     *bench.Log[*api.VirtualMachine] // of Environment.VMs
	fleets    []*fleet                        // Drover's and that of client-go
	handovers map[circumstances][]handover
}

func measureWith(s leader.Settings) func(context.Context, *bench.Environment) error {
	return func(ctx context.Context, e *bench.Environment) (err error) {
		b := &benchmark{Environment: e, settings: s, handovers: map[circumstances][]handover{}}
		if b.vmLog, err = bench.StartLog[*api.VirtualMachine](ctx, bench.WatchVMs(b.VMs)); err != nil {
			return err
		}
		defer func() {
			for _, f := range b.fleets {
				err = errors.Join(err, f.stopAll())
			}
		}()
		if err := b.openFleets(ctx); err != nil {
			return err
		}
		if err := b.measureAll(ctx); err != nil {
			return err
		}
		b.addRows()
		return nil
	}
}

func (b *benchmark) openFleets(ctx context.Context) error {
	settings, err := json.Marshal(b.settings)
	if err != nil {
		return err
	}
	launchers := map[string]func(string) (*bench.Controller, error){
		nameDrover: func(identity string) (*bench.Controller, error) {
			return b.StartController(ctx, nil, append(b.args(),
				"--leader-elect", "--holder-identity="+identity, "--lease-lock-name="+nameDrover, "--lease-lock-namespace="+metav1.NamespaceDefault,
				fmt.Sprintf("--leader-elect-lease-duration=%s", b.settings.Lease), fmt.Sprintf("--leader-elect-renew-deadline=%s", b.settings.Renew),
				fmt.Sprintf("--leader-elect-retry-period=%s", b.settings.Retry))...)
		},
		namePlain: func(identity string) (*bench.Controller, error) {
			return b.StartFloor(floorElector, namePlain, identity, string(settings))
		},
	}
	for _, name := range []string{nameDrover, namePlain} {
		log, err := bench.StartLog[*coordinationv1.Lease](ctx, cache.NewListWatchFromClient(b.KubeClient.CoordinationV1().RESTClient(),
			"leases", metav1.NamespaceDefault, fields.OneTermEqualSelector(metav1.ObjectNameField, name)))
		if err != nil {
			return err
		}
		b.fleets = append(b.fleets, &fleet{name: name, log: log, launch: launchers[name]})
	}
	return nil
}

// args returns the flags of every controller.
func (b *benchmark) args() []string {
	return []string{"--vm-driver=fake", "--fake-dir=" + filepath.Join(b.Temp, "fake"), "--metrics-bind-address=0"}
}

// measureAll measures with each number of VMs.
func (b *benchmark) measureAll(ctx context.Context) error {
	for _, vms := range b.Sizes {
		if vms > 0 {
			if err := b.createVMs(ctx, vms); err != nil {
				return err
			}
		}
		if err := b.measureHandovers(ctx, vms); err != nil {
			return err
		}
	}
	for _, f := range b.fleets {
		if f.lost > 0 {
			b.Notef("%d replicas of %s ended by themselves after they lost the Lease", f.lost, f.name)
		}
	}
	return nil
}

// createVMs creates the VMs with a controller without election: because of so much work
// at once a leader could lose a short Lease.
func (b *benchmark) createVMs(ctx context.Context, vms int) error {
	for _, f := range b.fleets {
		if err := f.stopAll(); err != nil {
			return err
		}
	}
	return b.WithController(ctx, func(*bench.Controller) error { return b.Idle.CreateSettled(ctx, vms) }, b.args()...)
}

// measureHandovers lets the fleets take turns, so that other activity on the host affects
// both.
func (b *benchmark) measureHandovers(ctx context.Context, vms int) error {
	if err := b.waitUntilSteady(ctx); err != nil {
		return err
	}
	// The first creation of a kind takes the API server seconds.
	if err := b.VMs.CreateOne(ctx, "try", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return err
	}
	for n := range b.Turns {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			for _, f := range b.fleets {
				name := ""
				if f.name == nameDrover {
					name = fmt.Sprintf("gap-%d-%d-%d", vms, sig, n)
				}
				h, err := b.measureHandover(ctx, f, sig, name)
				if err != nil {
					return fmt.Errorf("with %d VMs, turn %d: %w", vms, n+1, err)
				}
				at := circumstances{f.name, vms, sig}
				b.handovers[at] = append(b.handovers[at], h)
			}
		}
	}
	return nil
}
