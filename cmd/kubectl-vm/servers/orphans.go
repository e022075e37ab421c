// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// pollPeriod is the interval between two looks for a server that is to go.
const pollPeriod = 2 * time.Second

// Remover has the controller remove orphans that a person approves.
type Remover struct {
	// Look looks at the engines, and then at the API.
	Look func(context.Context) (*Look, error)
	// Confirm asks a question, and returns an error unless the answer is yes. Nil does not ask.
	Confirm func(context.Context, string) error
	Out     io.Writer
	Clock   clock.WithTicker
	// Program is how users call the commands, such as "kubectl vm".
	Program string
	// Timeout is how long to wait for the removal, 0 for not at all.
	Timeout time.Duration
}

// Remove approves the removal of the orphans of some UIDs, and waits for it.
func (r *Remover) Remove(ctx context.Context, uids []string) error {
	look, err := r.Look(ctx)
	if err != nil {
		return err
	}
	chosen, err := r.chooseOrphans(look, uids)
	if err != nil {
		return err
	}
	if r.Confirm != nil {
		if err := PrintTable(r.Out, chosen, ByUID, r.Clock.Now(), ""); err != nil {
			return err
		}
		if err := r.Confirm(ctx, "Have Drover end and remove "+Count(len(chosen), "server")+" with all disks?"); err != nil {
			return err
		}
	}
	if err := updateApprovals(ctx, look, chosen, nil); err != nil {
		return fmt.Errorf("approve the removal: %w", err)
	}
	if r.Timeout == 0 {
		_, _ = fmt.Fprintf(r.Out, "Approved: %s. Drover removes them after it has read engine and API twice more.\n", Count(len(chosen), "server"))
		return nil
	}
	return r.waitForRemoval(ctx, chosen)
}

// chooseOrphans returns the orphans with these UIDs, or says why one of them is not an orphan.
func (r *Remover) chooseOrphans(look *Look, uids []string) ([]Server, error) {
	var chosen []Server
	var errs []error
	orphans := look.Orphans()
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(uids))) {
		before := len(chosen)
		for _, s := range orphans {
			if string(s.UID) == uid {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == before {
			errs = append(errs, r.explainRefusal(look, types.UID(uid)))
		}
	}
	for _, s := range chosen {
		errs = append(errs, checkDriver(look, s))
	}
	return chosen, errors.Join(errs...)
}

// explainRefusal says why a UID does not name an orphan.
func (r *Remover) explainRefusal(look *Look, uid types.UID) error {
	for _, s := range look.Servers {
		switch {
		case s.UID != uid:
		case s.Retained:
			return fmt.Errorf("%s was released, so it is not an orphan: docs/kubectl-vm.md says how to remove it", uid)
		case look.Owners[uid]:
			return fmt.Errorf("%s belongs to the VirtualMachine %s: delete that", uid, nameOf(s))
		case s.Error != "":
			return fmt.Errorf("%s cannot be read, so it is not known whose it is: %s", uid, printable.Line(s.Error))
		}
	}
	return fmt.Errorf("no server of this installation has the UID %q: %s orphans list shows those without a VirtualMachine", uid, r.Program)
}

// checkDriver refuses a server whose driver the controller does not run, since that never
// removes it.
func checkDriver(look *Look, s Server) error {
	if slices.Contains(look.Drivers, s.Driver) {
		return nil
	}
	return fmt.Errorf("%s is a server of driver %s, which Drover does not run: start it with --vm-driver=%s", s.UID, s.Driver, strings.Join(append(slices.Clone(look.Drivers), s.Driver), ","))
}

// updateApprovals adds approvals, and removes those of servers that are gone.
func updateApprovals(ctx context.Context, look *Look, chosen, done []Server) error {
	const resource = "configmaps"
	approvals := &corev1.ConfigMap{}
	err := look.Core.Get().Namespace(metav1.NamespaceSystem).Resource(resource).Name(streams.OrphanApprovalsName).Do(ctx).Into(approvals)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	exists := err == nil
	data, added := map[string]any{}, map[string]string{}
	for uid := range approvals.Data {
		if slices.ContainsFunc(done, func(s Server) bool { return string(s.UID) == uid }) {
			data[uid] = nil
		}
	}
	for _, s := range chosen {
		data[string(s.UID)], added[string(s.UID)] = s.ID, s.ID
	}
	switch {
	case len(data) == 0:
		return nil
	case !exists:
		return look.Core.Post().Namespace(metav1.NamespaceSystem).Resource(resource).
			Body(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: streams.OrphanApprovalsName}, Data: added}).Do(ctx).Error()
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	return look.Core.Patch(types.MergePatchType).Namespace(metav1.NamespaceSystem).Resource(resource).Name(streams.OrphanApprovalsName).Body(patch).Do(ctx).Error()
}

// waitForRemoval waits until the controller has removed the servers. A look that fails is repeated, since
// a replica may be starting, unless the user lacks the rights.
func (r *Remover) waitForRemoval(ctx context.Context, chosen []Server) error {
	_, _ = fmt.Fprintln(r.Out, "Approved. Drover reads engine and API twice more, then removes them ...")
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	ticker := r.Clock.NewTicker(pollPeriod)
	defer ticker.Stop()
	var last error
	for all := chosen; ; {
		look, err := r.Look(ctx)
		if err == nil {
			if chosen = r.reportGone(look, chosen); len(chosen) == 0 {
				if err = updateApprovals(ctx, look, nil, all); err == nil {
					return nil
				}
			}
		}
		switch {
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return fmt.Errorf("the approval stays: %w", err)
		case ctx.Err() == nil:
			last = err
		}
		select {
		case <-ctx.Done():
			return r.timeoutError(chosen, last)
		case <-ticker.C():
		}
	}
}

// timeoutError names a server that was not removed in time, and the last failure.
func (r *Remover) timeoutError(left []Server, last error) error {
	if len(left) == 0 {
		return fmt.Errorf("all are removed, but the approval stays: %w", last)
	}
	err := fmt.Errorf("%s, such as %s, not removed within %s: the approval stays; the log says what the sweep waits for", Count(len(left), "server"), left[0].UID, r.Timeout)
	if last != nil {
		err = fmt.Errorf("%w; the last look failed: %w", err, last)
	}
	return err
}

// reportGone prints which servers are gone, or have a VirtualMachine again, and returns the
// others.
func (r *Remover) reportGone(look *Look, waited []Server) []Server {
	var left []Server
	for _, s := range waited {
		isThere := slices.ContainsFunc(look.Servers, func(other Server) bool { return other.UID == s.UID && other.ID == s.ID })
		// The id of an engine that does not answer is unknown.
		isKnown := s.EngineID != "" && slices.Contains(look.Answered, Engine{s.Driver, s.EngineID})
		switch {
		case !isKnown:
			left = append(left, s)
		case !isThere:
			_, _ = fmt.Fprintf(r.Out, "Removed: %s server %s of %s.\n", s.Driver, ShortID(s.ID), nameOf(s))
		case look.Owners[s.UID]:
			_, _ = fmt.Fprintf(r.Out, "Left: %s has a VirtualMachine again.\n", s.UID)
		default:
			left = append(left, s)
		}
	}
	return left
}
