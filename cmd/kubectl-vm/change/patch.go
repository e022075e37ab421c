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

// FieldManager is the owner of the fields that this program changes, in metadata.managedFields.
const FieldManager = "kubectl-vm"

// patchVM changes fields of a VM. As kubectl scale does, it uses a merge patch instead of a
// server-side apply. The patch always succeeds, and whoever applies the field later gets a conflict
// that names this program.
func patchVM(ctx context.Context, o *kit.Options, chosen *vms.SelectedVM, change any) (*api.VirtualMachine, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("encode the change: %w", err)
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

// conflictBackoff has the waits before a change with a precondition is tried again. Each write of a
// status by the controller causes a conflict.
var conflictBackoff = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 12}

// retryOnConflict repeats a change after conflicts, and returns its last error. RetryOnConflict itself
// would return nil for the error of an ended context.
func retryOnConflict(change func() error) (err error) {
	_ = retry.RetryOnConflict(conflictBackoff, func() error {
		err = change()
		return err
	})
	return err
}
