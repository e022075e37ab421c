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

// pollPeriod is the interval between two checks whether a server was removed.
const pollPeriod = 2 * time.Second

// Remover approves the removal of orphans. The controller then removes them.
type Remover struct {
	// Read reads the engines, and then the API.
	Read func(context.Context) (*Snapshot, error)
	// Confirm asks a question, and returns an error unless the answer is yes. If nil, nothing is asked.
	Confirm func(context.Context, string) error
	Out     io.Writer
	Clock   clock.WithTicker
	// Program is the command with which users call the program, such as "kubectl vm".
	Program string
	// Timeout is how long to wait for the removal. If it is 0, Remove does not wait.
	Timeout time.Duration
}

// Remove approves the removal of the orphans with some UIDs, and waits for the removal.
func (r *Remover) Remove(ctx context.Context, uids []string) error {
	snapshot, err := r.Read(ctx)
	if err != nil {
		return err
	}
	chosen, err := r.chooseOrphans(snapshot, uids)
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
	if err := updateApprovals(ctx, snapshot, chosen, nil); err != nil {
		return fmt.Errorf("approve the removal: %w", err)
	}
	if r.Timeout == 0 {
		_, _ = fmt.Fprintf(r.Out, "Approved: %s. Drover removes them after it has read the engine and the API twice more.\n", Count(len(chosen), "server"))
		return nil
	}
	return r.waitForRemoval(ctx, chosen)
}

// chooseOrphans returns the orphans with these UIDs, and an error if one of the UIDs does not name an orphan.
func (r *Remover) chooseOrphans(snapshot *Snapshot, uids []string) ([]Server, error) {
	var chosen []Server
	var errs []error
	orphans := snapshot.Orphans()
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(uids))) {
		before := len(chosen)
		for _, s := range orphans {
			if string(s.UID) == uid {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == before {
			errs = append(errs, r.explainRefusal(snapshot, types.UID(uid)))
		}
	}
	for _, s := range chosen {
		errs = append(errs, checkDriver(snapshot, s))
	}
	return chosen, errors.Join(errs...)
}

// explainRefusal says why a UID does not name an orphan.
func (r *Remover) explainRefusal(snapshot *Snapshot, uid types.UID) error {
	for _, s := range snapshot.Servers {
		switch {
		case s.UID != uid:
		case s.Retained:
			return fmt.Errorf("%s was released, so it is not an orphan: docs/kubectl-vm.md says how to remove it", uid)
		case snapshot.Owners[uid]:
			return fmt.Errorf("%s belongs to the VirtualMachine %s: delete the VirtualMachine instead", uid, nameOf(s))
		case s.Error != "":
			return fmt.Errorf("%s cannot be read, so its owner is unknown: %s", uid, printable.Line(s.Error))
		}
	}
	return fmt.Errorf("no server of this installation has the UID %q: %s orphans list shows the servers without a VirtualMachine", uid, r.Program)
}

// checkDriver returns an error for a server whose driver the controller does not run: the controller would
// never remove the server.
func checkDriver(snapshot *Snapshot, s Server) error {
	if slices.Contains(snapshot.Drivers, s.Driver) {
		return nil
	}
	return fmt.Errorf("%s is a server of driver %s, which Drover does not run: start Drover with --vm-driver=%s", s.UID, s.Driver, strings.Join(append(slices.Clone(snapshot.Drivers), s.Driver), ","))
}

// updateApprovals adds the approvals for the chosen servers, and removes the approvals for the removed servers.
func updateApprovals(ctx context.Context, snapshot *Snapshot, chosen, removed []Server) error {
	const resource = "configmaps"
	approvals := &corev1.ConfigMap{}
	err := snapshot.Core.Get().Namespace(metav1.NamespaceSystem).Resource(resource).Name(streams.OrphanApprovalsName).Do(ctx).Into(approvals)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	exists := err == nil
	data, added := map[string]any{}, map[string]string{}
	for uid := range approvals.Data {
		if slices.ContainsFunc(removed, func(s Server) bool { return string(s.UID) == uid }) {
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
		return snapshot.Core.Post().Namespace(metav1.NamespaceSystem).Resource(resource).
			Body(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: streams.OrphanApprovalsName}, Data: added}).Do(ctx).Error()
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	return snapshot.Core.Patch(types.MergePatchType).Namespace(metav1.NamespaceSystem).Resource(resource).Name(streams.OrphanApprovalsName).Body(patch).Do(ctx).Error()
}

// waitForRemoval waits until the controller has removed the servers. It reads again after a failure, since a
// replica may be starting, unless the user lacks the rights.
func (r *Remover) waitForRemoval(ctx context.Context, chosen []Server) error {
	_, _ = fmt.Fprintln(r.Out, "Approved. Drover reads the engine and the API twice more, then removes them ...")
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	ticker := r.Clock.NewTicker(pollPeriod)
	defer ticker.Stop()
	var lastErr error
	for all := chosen; ; {
		snapshot, err := r.Read(ctx)
		if err == nil {
			if chosen = r.reportGone(snapshot, chosen); len(chosen) == 0 {
				if err = updateApprovals(ctx, snapshot, nil, all); err == nil {
					return nil
				}
			}
		}
		switch {
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return fmt.Errorf("the approval stays: %w", err)
		case ctx.Err() == nil:
			lastErr = err
		}
		select {
		case <-ctx.Done():
			return r.timeoutError(chosen, lastErr)
		case <-ticker.C():
		}
	}
}

// timeoutError names a server that was not removed in time, and the last failure.
func (r *Remover) timeoutError(left []Server, lastErr error) error {
	if len(left) == 0 {
		return fmt.Errorf("the servers are removed, but the approval stays: %w", lastErr)
	}
	err := fmt.Errorf("%s, such as %s, not removed within %s: the approval stays; the log of the controller says what the removal waits for", Count(len(left), "server"), left[0].UID, r.Timeout)
	if lastErr != nil {
		err = fmt.Errorf("%w; the last check failed: %w", err, lastErr)
	}
	return err
}

// reportGone prints which servers are gone, or have a VirtualMachine again, and returns the
// others.
func (r *Remover) reportGone(snapshot *Snapshot, awaited []Server) []Server {
	var left []Server
	for _, s := range awaited {
		exists := slices.ContainsFunc(snapshot.Servers, func(other Server) bool { return other.UID == s.UID && other.ID == s.ID })
		// An engine that did not answer may still have the server.
		hasAnswered := s.EngineID != "" && slices.Contains(snapshot.Answered, Engine{s.Driver, s.EngineID})
		switch {
		case !hasAnswered:
			left = append(left, s)
		case !exists:
			_, _ = fmt.Fprintf(r.Out, "Removed: %s server %s of %s.\n", s.Driver, ShortID(s.ID), nameOf(s))
		case snapshot.Owners[s.UID]:
			_, _ = fmt.Fprintf(r.Out, "Not removed: %s has a VirtualMachine again.\n", s.UID)
		default:
			left = append(left, s)
		}
	}
	return left
}
