// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machines controls the machines in pods through their control channels (internal/machine/control).
//
// Start with Machines. seed.go has the seeds, from which the credentials of every machine are derived.
package machines

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

const (
	// changeWithin limits a call that changes a machine, and sampleWithin one that asks it.
	changeWithin, sampleWithin = 10 * time.Second, 5 * time.Second
	// maxConcurrent limits the concurrent calls of Sample.
	maxConcurrent = 64
)

// Machine has the address and identity of a machine.
type Machine struct {
	// UID of its VirtualMachine, for which its certificate was issued.
	UID types.UID
	// Pod is the UID of its pod, and Nonce the nonce with which the pod was created.
	Pod   types.UID
	Nonce string
	// Address of its control channel, with the port.
	Address string
}

// Machines controls machines, and remembers what it last observed of each. A machine that does not answer
// delays no call to another one.
type Machines struct {
	// Secrets is a client of the namespace with the Secrets of the seeds.
	Secrets corev1client.SecretInterface
	Clock   clock.PassiveClock
	// Guests is set if people reach the guests of machines that are made, through Guest.
	Guests bool

	seed, guestSeed knownSeed

	seen driver.SyncMap[types.UID, observation] // by the UID of the pod
	// clients caches the client credentials for each machine, by the UID of its pod: deriving them takes
	// more CPU time than a call.
	clients driver.SyncMap[types.UID, cachedCredentials]
}

// cachedCredentials are client credentials, with the UID and nonce that they were derived from: whoever
// may edit a pod can change its nonce.
type cachedCredentials struct {
	uid         types.UID
	nonce       string
	credentials control.Credentials
}

// observation is the last observation of a machine.
type observation struct {
	status control.Status
	// isSilent is set if the machine did not answer the last question.
	isSilent bool
	// hasAnswered is set once the machine has answered anything.
	hasAnswered bool
}

// Last returns the last observed status of the machine in a pod. ok is false if there is none.
func (m *Machines) Last(pod types.UID) (status control.Status, ok bool) {
	last, ok := m.seen.Load(pod)
	return last.status, ok && last.status.State != ""
}

// HasAnswered reports whether the machine in a pod has ever answered, for which it needs the keys in its
// Secret.
func (m *Machines) HasAnswered(pod types.UID) bool {
	last, _ := m.seen.Load(pod)
	return last.hasAnswered
}

// Forget forgets what was observed of machines in pods, except of those that are present.
func (m *Machines) Forget(isPresent func(pod types.UID) bool) {
	m.seen.DeleteFunc(func(pod types.UID, _ observation) bool { return !isPresent(pod) })
	m.clients.DeleteFunc(func(pod types.UID, _ cachedCredentials) bool { return !isPresent(pod) })
}

// Pause halts the guest. It may be repeated.
func (m *Machines) Pause(ctx context.Context, machine Machine) error {
	return m.setState(ctx, machine, control.StatePaused, (*control.Client).Pause)
}

// Resume resumes a paused guest. It may be repeated.
func (m *Machines) Resume(ctx context.Context, machine Machine) error {
	return m.setState(ctx, machine, control.StateRunning, (*control.Client).Resume)
}

// setState changes the state of a guest. If the call fails, the guest counts as in the other state, so
// that the change is repeated.
func (m *Machines) setState(ctx context.Context, machine Machine, state control.State, change func(*control.Client, context.Context) error) error {
	err := m.changeMachine(ctx, machine, changeWithin, "is "+string(state), change)
	if err != nil {
		state = map[control.State]control.State{control.StatePaused: control.StateRunning, control.StateRunning: control.StatePaused}[state]
	}
	m.seen.Update(machine.Pod, func(last observation, _ bool) (observation, bool) {
		last.status.State, last.hasAnswered = state, last.hasAnswered || err == nil
		return last, true
	})
	return err
}

// Probe waits until the guest itself has answered at a TCP port, as long as ctx allows.
func (m *Machines) Probe(ctx context.Context, machine Machine, port int32) error {
	return m.callMachine(ctx, machine, control.CallWithin, func(c *control.Client, ctx context.Context) error { return c.Probe(ctx, port) })
}

// Grow enlarges disks.
func (m *Machines) Grow(ctx context.Context, machine Machine, sizes control.Sizes) error {
	return m.changeMachine(ctx, machine, changeWithin, "grow", func(c *control.Client, ctx context.Context) error {
		_, err := c.Grow(ctx, sizes)
		return err
	})
}

// SetGracePeriod sets how long the guest has to shut down once the pod is deleted.
func (m *Machines) SetGracePeriod(ctx context.Context, machine Machine, period time.Duration) error {
	return m.changeMachine(ctx, machine, sampleWithin, "grace period", func(c *control.Client, ctx context.Context) error { return c.SetGracePeriod(ctx, period) })
}

// changeMachine makes a call that changes a machine.
func (m *Machines) changeMachine(ctx context.Context, machine Machine, within time.Duration, name string, do func(*control.Client, context.Context) error) error {
	point := crashpoint.Begin("machine "+name, string(machine.UID))
	err := point.Inject(func(ctx context.Context) error { return m.callMachine(ctx, machine, within, do) })(ctx)
	point.End()
	return err
}

// callMachine makes a call to a machine within a time.
func (m *Machines) callMachine(ctx context.Context, machine Machine, within time.Duration, do func(*control.Client, context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	c, err := m.clientOf(ctx, machine)
	if err != nil {
		return err
	}
	err = do(c, ctx)
	if errors.Is(err, failure.ErrIdentity) {
		m.clients.Delete(machine.Pod) // they may date from when this host's clock was wrong
	}
	return driverError(err)
}

// driverError wraps the error of a call as an error of package driver.
func driverError(err error) error {
	if err == nil {
		return nil
	}
	return driver.Errorf(driver.ErrRetry, "%w", err)
}

// Sample asks machines for their usage. Machines that do not answer are missing in the result. It also
// returns the UIDs of those whose state differs from the last observation.
func (m *Machines) Sample(ctx context.Context, all []Machine) (samples []driver.Usage, changed []types.UID, err error) {
	if len(all) == 0 {
		return nil, nil, nil
	}
	if _, err := m.readControlSeed(ctx); err != nil {
		return nil, nil, err // each machine would ask for it again
	}
	all = m.orderSilentLast(all)
	results, differs := make([]*driver.Usage, len(all)), make([]bool, len(all))
	var calls errgroup.Group
	calls.SetLimit(maxConcurrent)
	for n, at := range all {
		calls.Go(func() error {
			if ctx.Err() == nil { // otherwise the next sample asks it before silent ones
				results[n], differs[n] = m.sampleMachine(ctx, at)
			}
			return nil
		})
	}
	_ = calls.Wait()
	for n := range all {
		if results[n] != nil {
			samples = append(samples, *results[n])
		}
		if differs[n] {
			changed = append(changed, all[n].UID)
		}
	}
	return samples, changed, nil
}

// orderSilentLast returns machines in the order in which to ask them: last those that did not answer
// before, because they take longest.
func (m *Machines) orderSilentLast(all []Machine) []Machine {
	all = slices.Clone(all)
	silent := map[types.UID]int{}
	for _, at := range all {
		if last, _ := m.seen.Load(at.Pod); last.isSilent {
			silent[at.Pod] = 1
		}
	}
	slices.SortStableFunc(all, func(a, b Machine) int { return cmp.Compare(silent[a.Pod], silent[b.Pod]) })
	return all
}

// sampleMachine asks one machine for its usage, nil if it does not answer or its guest has not started
// yet. differs is set if its state has changed.
func (m *Machines) sampleMachine(ctx context.Context, machine Machine) (used *driver.Usage, differs bool) {
	var status control.Status
	err := m.callMachine(ctx, machine, sampleWithin, func(c *control.Client, ctx context.Context) (err error) {
		status, err = c.Status(ctx)
		return err
	})
	m.seen.Update(machine.Pod, func(last observation, _ bool) (observation, bool) {
		if last.isSilent = err != nil; last.isSilent {
			return last, true
		}
		differs = last.status.State != status.State || last.status.Waits != status.Waits || last.status.Accelerator != status.Accelerator || status.Copied != nil
		last.status, last.hasAnswered = status, true
		return last, true
	})
	if err != nil || status.StartedAt.IsZero() {
		return nil, differs
	}
	return &driver.Usage{
		UID: machine.UID, Run: string(machine.Pod), CPU: time.Duration(status.CPUNanoseconds),
		MemoryBytes: cmp.Or(status.GuestMemoryBytes, status.MemoryBytes), At: m.Clock.Now(),
	}, differs
}

// clientOf returns a client of a machine.
func (m *Machines) clientOf(ctx context.Context, machine Machine) (*control.Client, error) {
	credentials, err := m.clientCredentials(ctx, machine)
	if err != nil {
		return nil, err
	}
	return newClient(machine, credentials)
}

// newClient returns a client of a machine that has these credentials.
func newClient(machine Machine, credentials control.Credentials) (*control.Client, error) {
	config, err := credentials.ClientConfig(string(machine.UID))
	if err != nil {
		return nil, err
	}
	return control.NewClient(machine.Address, config), nil
}

// clientCredentials returns the cached client credentials for a machine, or derives them.
func (m *Machines) clientCredentials(ctx context.Context, machine Machine) (control.Credentials, error) {
	if known, _ := m.clients.Load(machine.Pod); known.uid == machine.UID && known.nonce == machine.Nonce {
		return known.credentials, nil
	}
	seed, err := m.readControlSeed(ctx)
	if err != nil {
		return control.Credentials{}, err
	}
	derived, err := control.ClientCredentials(seed, string(machine.UID), machine.Nonce, m.Clock.Now())
	if err == nil {
		m.clients.Store(machine.Pod, cachedCredentials{machine.UID, machine.Nonce, derived})
	}
	return derived, err
}
