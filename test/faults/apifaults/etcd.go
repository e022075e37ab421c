// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/users"
)

// EtcdKind is the kind of fault in which the API server and its etcd are killed, etcd is full,
// or etcd is restored from a backup, in the middle of users' requests.
func EtcdKind(name string) lab.Kind {
	return lab.Kind{
		Name: name, NeedsOwnLab: true, Sizes: []lab.Size{lab.SizeDefault, lab.SizeFull},
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			return exploreEtcd(ctx, l, func(c etcdCase) bool { return size == lab.SizeFull || !c.isRare })
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			return exploreEtcd(ctx, l, func(c etcdCase) bool { return c.name == name })
		},
	}
}

// etcdCase is a fault of etcd that occurs after users have requested something.
type etcdCase struct {
	name string
	// isRare is set if the case is only run in lab.SizeFull.
	isRare bool
	// prepare is called before the requests, and fault after them. They may be nil.
	prepare, fault func(context.Context, *etcdRun) error
	// creations is how many VirtualMachines users create.
	creations int
	// undone is set if the fault undoes users' requests.
	undone bool
	// isExpected reports whether the documentation announces a violation.
	isExpected func(lab.Violation) bool
}

// freezeThreshold is the number of lost VirtualMachines at which the sweep freezes and keeps their servers.
const freezeThreshold = 5

// etcdCases returns all cases. The first has no fault: the others must end in the same state.
func etcdCases() []etcdCase {
	all := []etcdCase{
		{name: "none", creations: 1},
		{name: "compacted", creations: 1, prepare: cutOff, fault: compactAndReturn},
		{name: "restored", creations: 1, undone: true, prepare: backUp, fault: restoreRaised, isExpected: isSecondServer},
		{name: "restored, old revision", creations: 1, undone: true, prepare: backUp, fault: restoreAsIs, isExpected: isSecondServer},
		{name: "restored, many are lost", creations: freezeThreshold, undone: true, prepare: backUp, fault: restoreRaised, isExpected: isSecondServer},
	}
	for n := range 50 {
		after, isRare := time.Duration(n)*20*time.Millisecond, n != 0 && n != 4
		all = append(all,
			etcdCase{name: fmt.Sprintf("killed after %s", after), isRare: isRare, creations: 1, fault: killAfter(after)},
			etcdCase{name: fmt.Sprintf("full after %s", after), isRare: isRare, creations: 1, fault: fillAfter(after)})
	}
	return all
}

// exploreEtcd runs cases one after another, since each affects all users of etcd.
func exploreEtcd(ctx context.Context, l *lab.Lab, isWanted func(etcdCase) bool) (result lab.Result, err error) {
	begin := time.Now()
	etcd, err := grpc.NewClient("unix:"+filepath.Join(l.DataDir, "run", "etcd.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	var want lab.State
	for _, c := range etcdCases() {
		if c.fault != nil && !isWanted(c) {
			continue
		}
		r := &etcdRun{Lab: l, etcdCase: c, etcd: etcd}
		broken, err := r.run(ctx, want)
		if err != nil {
			return result, fmt.Errorf("%s: %w\n%s", c.name, err, r.output)
		}
		if c.fault == nil {
			want = r.state
		} else {
			result.Points++
		}
		result.AddRun(broken)
		if len(broken) > 0 && result.Runs < 3 {
			result.Notes = append(result.Notes, r.output)
		}
	}
	result.Took = time.Since(begin)
	return result, nil
}

// run runs a case.
func (r *etcdRun) run(ctx context.Context, want lab.State) (broken []lab.Violation, err error) {
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	defer func() {
		r.output = r.replicas.Output()
		r.replicas.Stop()
		err = errors.Join(err, r.world.Close())
	}()
	for _, do := range []func(context.Context, *etcdRun) error{r.prepare, request, r.fault} {
		if do == nil {
			continue
		}
		if err := do(ctx, r); err != nil {
			return nil, err
		}
	}
	err = r.waitConverged(ctx)
	if late, ok := errors.AsType[*lab.NotConvergedError](err); ok {
		return []lab.Violation{{Case: r.name, Rule: rules.Converges, Text: late.Error(), History: r.replicas.Decisions()}}, nil
	}
	if err == nil {
		broken, err = r.checkState(ctx, want)
	}
	return broken, err
}

// The names of users' VirtualMachines. Each is the request that users make for it.
const (
	deleted   = "deleted"
	restarted = "restarted"
	resized   = "resized"
	untouched = "untouched"
)

func laterName(n int) string { return fmt.Sprintf("later-%d", n) }

// request requests changes, and does not wait for them.
func request(ctx context.Context, r *etcdRun) error {
	at := metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	err := errors.Join(
		r.world.DeleteVM(ctx, deleted),
		r.world.UpdateVM(ctx, restarted, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = &at }),
		r.world.UpdateVM(ctx, resized, r.engine.Resize))
	for n := range r.creations {
		err = errors.Join(err, r.world.CreateVM(ctx, r.engine.NewVM(laterName(n)).Obj()))
	}
	if !r.undone {
		return err
	}
	return errors.Join(err, r.waitRequested(ctx))
}

// waitConverged waits until every VirtualMachine is in the expected state.
func (r *etcdRun) waitConverged(ctx context.Context) error {
	if !r.undone {
		return r.waitRequested(ctx)
	}
	for n := range r.creations {
		if err := r.world.WaitGone(ctx, laterName(n)); err != nil {
			return err
		}
	}
	return r.waitApplied(ctx, deleted, restarted, resized, untouched)
}

// waitRequested waits until users' requests are complete.
func (r *etcdRun) waitRequested(ctx context.Context) error {
	for n := range r.creations {
		if err := r.waitApplied(ctx, laterName(n)); err != nil {
			return err
		}
	}
	return errors.Join(r.world.WaitGone(ctx, deleted), r.waitApplied(ctx, restarted, resized, untouched))
}

func (r *etcdRun) waitApplied(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := r.world.WaitVM(ctx, name, users.CheckApplied); err != nil {
			return err
		}
	}
	return nil
}

// checkState waits until nothing is written any more, and returns the rules that are broken.
func (r *etcdRun) checkState(ctx context.Context, want lab.State) ([]lab.Violation, error) {
	if r.undone {
		want = r.snapshot
	}
	// Events do not count, because client-go sends them again for a while.
	if v := lab.ViolationOf(r.world.WaitRest(ctx, quietTime, "events")); v != nil {
		return r.withoutExpected([]lab.Violation{*v}), nil
	}
	return lab.Settle(ctx, func() ([]lab.Violation, error) {
		state, broken, err := r.world.Judge(ctx, r.replicas)
		if err != nil {
			return nil, err
		}
		r.state = state
		if r.undone {
			state, want = withoutRestarts(state), withoutRestarts(want)
		}
		if r.fault != nil {
			for _, text := range state.Differences(want) {
				broken = append(broken, lab.Violation{Rule: rules.AsRequested, Text: text})
			}
		}
		if r.creations == freezeThreshold && r.undone {
			broken = r.checkKept(ctx, broken)
		}
		return r.withoutExpected(broken), nil
	})
}

// quietTime is how long nothing may be written before the world counts as at rest.
const quietTime = time.Second

var restartCounts = regexp.MustCompile(`restarts=\d+`)

// withoutRestarts returns a state without the parts that a restored etcd cannot undo: the
// effects on servers, and how often they were restarted.
func withoutRestarts(s lab.State) lab.State {
	s.Effects, s.VMs = nil, maps.Clone(s.VMs)
	for name, status := range s.VMs {
		s.VMs[name] = restartCounts.ReplaceAllString(status, "")
	}
	return s
}

func (r *etcdRun) withoutExpected(all []lab.Violation) []lab.Violation {
	var unexpected []lab.Violation
	for _, v := range all {
		if r.isExpected == nil || !r.isExpected(v) {
			v.Case, v.History = r.name, r.replicas.Decisions()
			unexpected = append(unexpected, v)
		}
	}
	return unexpected
}

// sweepTime is long enough for a sweep that is not frozen to remove orphans.
const sweepTime = 10 * time.Second

// checkKept checks that the sweep is frozen and keeps the servers of all lost VirtualMachines. It
// removes the violations that these servers cause.
func (r *etcdRun) checkKept(ctx context.Context, broken []lab.Violation) []lab.Violation {
	time.Sleep(sweepTime)
	_, current, err := r.world.Judge(ctx, r.replicas)
	if err != nil {
		return []lab.Violation{{Rule: rules.Converges, Text: err.Error()}}
	}
	kept := 0
	for _, v := range current {
		if isLostServer(v) {
			kept++
		}
	}
	broken = slices.DeleteFunc(broken, func(v lab.Violation) bool {
		return isLostServer(v) || v.Rule == rules.AsRequested && strings.HasPrefix(v.Text, "the servers are")
	})
	if kept != r.creations {
		broken = append(broken, lab.Violation{Rule: rules.OthersUntouched, Text: fmt.Sprintf("%d of %d servers without a VirtualMachine were kept, want all", kept, r.creations)})
	}
	return broken
}

// isLostServer reports whether a rule is broken because a server's VirtualMachine was lost.
func isLostServer(v lab.Violation) bool {
	return v.Rule == rules.NoOrphans && strings.Contains(v.Text, " of later-")
}

// isSecondServer reports whether a rule is broken because a deleted VirtualMachine was restored and
// has got a second server.
func isSecondServer(v lab.Violation) bool {
	return v.Rule == rules.OneServer && strings.HasPrefix(v.Text, deleted+": ")
}
