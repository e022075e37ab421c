// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/policy"
)

// recordedObjects returns what the status has recorded of the server's objects, for the driver.
func recordedObjects(vm *api.VirtualMachine) []driver.Object {
	var all []driver.Object
	for _, o := range vm.Status.Objects {
		one := driver.Object{Kind: o.Kind, Name: o.Name, Nonce: o.Nonce, UID: types.UID(o.UID), Ended: o.Ended, Made: o.Made}
		for _, i := range o.Images {
			one.Images = append(one.Images, driver.ResolvedImage(i))
		}
		all = append(all, one)
	}
	return all
}

// setObjects records in the pass's status what the driver returned.
func (s *step) setObjects(objects []driver.Object) {
	var all []api.ServerObject
	for _, o := range objects {
		one := api.ServerObject{Kind: o.Kind, Name: o.Name, Nonce: o.Nonce, UID: string(o.UID), Ended: o.Ended, Made: o.Made}
		for _, i := range o.Images {
			one.Images = append(one.Images, api.ResolvedImage(i))
		}
		all = append(all, one)
	}
	if !equality.Semantic.DeepEqual(all, s.vm.Status.Objects) {
		s.vm.Status.Objects = all
	}
}

// recordObjects writes objects to the status before the driver creates them, so that after a
// crash another process knows which of that name are the server's. The step is then decided
// again, unless it has failed. The write fails with a conflict if the object was changed meanwhile.
func (s *step) recordObjects(ctx context.Context, first *driver.RecordFirstError) (failure, err error) {
	before, op := s.vm.Status.Objects, s.vm.Status.Operation
	s.setObjects(first.Objects)
	wanted := s.vm.Status.Objects
	if s.decision.Action.ShortRuns > 0 {
		s.countShortRun() // an ephemeral server, whose run has ended, may be gone in the next step
	}
	if _, err := s.writeStatus(ctx); err != nil {
		s.vm.Status.Objects, s.vm.Status.Operation = before, op // what is not recorded is not passed to the driver
		return nil, err
	}
	s.unreported = true
	s.recordings++
	switch {
	case !equality.Semantic.DeepEqual(s.vm.Status.Objects, wanted):
		return fmt.Errorf("the API does not keep status.objects as it was written, which the %s driver needs: apply the CRD of this version of Drover", s.r.Driver), nil
	case first.Failure == nil && policy.IsStuck(s.recordings):
		return fmt.Errorf("the %s driver had objects recorded in the status %d times in a row, and made no server of them", s.r.Driver, s.recordings), nil
	}
	return first.Failure, nil
}
