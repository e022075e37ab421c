// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned/scheme"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// Resource is the name of VirtualMachines in paths and errors.
const Resource = "virtualmachines"

// GetVM returns a VM of a namespace.
func GetVM(ctx context.Context, o *kit.Options, namespace, name string) (*api.VirtualMachine, error) {
	client, err := o.VMs(namespace)
	if err != nil {
		return nil, err
	}
	vm, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, WrapNotFound(err, namespace, name)
	}
	return vm, nil
}

// FindVM returns the VM that an argument names, in the namespace of the command line.
func FindVM(ctx context.Context, o *kit.Options, arg string) (*api.VirtualMachine, error) {
	name, err := ParseName(arg)
	if err != nil {
		return nil, err
	}
	namespace, err := o.Namespace()
	if err != nil {
		return nil, err
	}
	return GetVM(ctx, o, namespace, name)
}

// notFoundError means that there is no VM called name in the namespace.
type notFoundError struct{ namespace, name string }

// Error implements error.
func (e *notFoundError) Error() string {
	return fmt.Sprintf("%s %q not found in namespace %q", Resource, e.name, e.namespace)
}

// IsNotFound reports whether an error means that a VM does not exist in a cluster with the VirtualMachine API.
func IsNotFound(err error) bool {
	missing := (*notFoundError)(nil)
	return errors.As(err, &missing)
}

// WrapNotFound converts an error "not found" from the API server to a notFoundError. It returns other errors unchanged.
func WrapNotFound(err error, namespace, name string) error {
	if apierrors.IsNotFound(err) && !kit.IsMissingAPI(err) {
		return &notFoundError{namespace: namespace, name: name}
	}
	return err
}

// GetObject returns a VM with all fields of the API server, also fields that this version of the program
// does not know.
func GetObject(ctx context.Context, o *kit.Options, namespace, name string) (*unstructured.Unstructured, error) {
	c, err := o.VMClient()
	if err != nil {
		return nil, err
	}
	raw, err := rawOf(c.Get().Namespace(namespace).Resource(Resource).Name(name).Do(ctx))
	if err != nil {
		return nil, WrapNotFound(err, namespace, name)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("read the answer of the API server: %w", err)
	}
	return object, nil
}

// rawOf returns the body of an answer. If the body is a Status, it returns the corresponding error, whereas
// Raw would return the body.
func rawOf(answer rest.Result) ([]byte, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	return answer.Raw()
}

// ListObjects returns VMs with all fields of the API server.
func ListObjects(ctx context.Context, o *kit.Options, namespace string, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	c, err := o.VMClient()
	if err != nil {
		return nil, err
	}
	raw, err := rawOf(c.Get().Namespace(namespace).Resource(Resource).VersionedParams(&opts, scheme.ParameterCodec).Do(ctx))
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("read the answer of the API server: %w", err)
	}
	return list, nil
}

// listedVM has the fields of a VM that tables need. Decoding a list takes half as long as with the generated
// client, which decodes all fields, and parses the whole answer once more to find its API version.
type listedVM struct {
	Metadata struct {
		Namespace         string       `json:"namespace"`
		Name              string       `json:"name"`
		CreationTimestamp metav1.Time  `json:"creationTimestamp"`
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		Generation        int64        `json:"generation"`
	} `json:"metadata"`
	Spec struct {
		Action   api.Action          `json:"action"`
		Resource corev1.ResourceList `json:"resource"`
		Driver   string              `json:"driver"`
		Image    *api.Image          `json:"image"`
		Ports    []api.Port          `json:"ports"`
	} `json:"spec"`
	Status api.VirtualMachineStatus `json:"status"`
}

func (l *listedVM) toVM() api.VirtualMachine {
	m := &l.Metadata
	return api.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		},
		Spec:   api.VirtualMachineSpec{Action: l.Spec.Action, Resource: l.Spec.Resource, Driver: l.Spec.Driver, Image: l.Spec.Image, Ports: l.Spec.Ports},
		Status: l.Status,
	}
}

// ListForTable returns VMs that only have the fields of listedVM.
func ListForTable(ctx context.Context, o *kit.Options, namespace string, opts metav1.ListOptions) ([]api.VirtualMachine, error) {
	c, err := o.VMClient()
	if err != nil {
		return nil, err
	}
	stream, err := c.Get().Namespace(namespace).Resource(Resource).VersionedParams(&opts, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	vms, err := readList(stream)
	if err != nil {
		return nil, fmt.Errorf("read the answer of the API server: %w", err)
	}
	return vms, nil
}

// errNoList means that an answer is not a list.
var errNoList = errors.New("the answer is not a list of VirtualMachines")

func readList(r io.Reader) ([]api.VirtualMachine, error) {
	var list struct {
		Items []listedVM `json:"items"`
	}
	if err := json.NewDecoder(r).Decode(&list); err != nil {
		return nil, err
	}
	if list.Items == nil {
		return nil, errNoList
	}
	vms := make([]api.VirtualMachine, len(list.Items))
	for i := range list.Items {
		vms[i] = list.Items[i].toVM()
	}
	return vms, nil
}

// DescribeFailure returns the message about an error of one VM, for a command that acts on several VMs.
func DescribeFailure(o *kit.Options, name string, err error) string {
	if IsNotFound(err) {
		return err.Error()
	}
	return name + ": " + o.DescribeError(err)
}

// uidsPage is how many VMs ReadUIDs reads with one request.
const uidsPage = 500

// ReadUIDs returns the UIDs of all VMs of the cluster. It reads them consistently, not from a cache of the
// API server.
func ReadUIDs(ctx context.Context, o *kit.Options) (map[types.UID]bool, error) {
	c, err := o.VMClient()
	if err != nil {
		return nil, err
	}
	uids := map[types.UID]bool{}
	opts := metav1.ListOptions{Limit: uidsPage}
	for {
		raw, err := rawOf(c.Get().Resource(Resource).VersionedParams(&opts, scheme.ParameterCodec).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx))
		if err != nil {
			return nil, err
		}
		var page metav1.PartialObjectMetadataList
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("read the VMs: %w", err)
		}
		if page.Kind != "PartialObjectMetadataList" {
			return nil, fmt.Errorf("the API server answers with a %q", page.Kind)
		}
		for i := range page.Items {
			uids[page.Items[i].UID] = true
		}
		if page.Continue == "" {
			return uids, nil
		}
		opts.Continue = page.Continue
	}
}
