// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// FieldManager owns the fields that this program changes, in metadata.managedFields.
const FieldManager = "kubectl-vm"

// patchVM changes fields of a VM. It is a merge patch and no server-side apply, as with kubectl
// scale: the user's word counts, and those who apply the field get a conflict that names
// this program.
func patchVM(ctx context.Context, o *kit.Options, chosen *vms.SelectedVM, change any) (*api.VirtualMachine, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("write the change: %w", err)
	}
	client, err := o.VMs(chosen.Namespace)
	if err != nil {
		return nil, err
	}
	vm, err := client.Patch(ctx, chosen.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, vms.WrapNotFound(err, chosen.Namespace, chosen.Name)
	}
	return vm, nil
}

// conflictBackoff is how a change with a precondition is tried again. Each status that the
// controller writes is a conflict.
var conflictBackoff = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 12}

// retryOnConflict repeats a change as long as others change the object, and returns its last error.
// RetryOnConflict alone returns nil for an error that says that a context has ended.
func retryOnConflict(change func() error) (err error) {
	_ = retry.RetryOnConflict(conflictBackoff, func() error {
		err = change()
		return err
	})
	return err
}
