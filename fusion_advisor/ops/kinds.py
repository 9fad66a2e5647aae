"""What kind of work each aten op does, by overload name.

The kind is a fact about the op alone; whether a particular call is fusable also
depends on its dtypes and layout, and on a recipe in the table.
"""

from __future__ import annotations

from fusion_advisor.ops.refused import REASONS
from fusion_advisor.records import Argument, OpKind, OpNode

_DUNDER_INPLACE = {
    "__iand__": "__and__",
    "__ior__": "__or__",
    "__ixor__": "__xor__",
    "__ilshift__": "__lshift__",
    "__irshift__": "__rshift__",
}
# Overloads whose functional twin has another name than theirs without underscore.
_FUNCTIONAL = {
    "aten.floor_divide_.Tensor": "aten.floor_divide.default",
    "aten.pow_.Scalar": "aten.pow.Tensor_Scalar",  # pow.Scalar is a number to a tensor's power
    "aten.pow_.Tensor": "aten.pow.Tensor_Tensor",
}

# Ops whose overload ``out`` is the twin of ``Tensor``; that of the others is the default.
_OUT_OF_TENSOR = frozenset(
    """
    add arctan2 bitwise_left_shift bitwise_right_shift copysign div divide float_power ldexp mul
    multiply sub subtract true_divide xlogy special_xlogy
    """.split()
)
# Overloads with out= whose twin has a name of its own.
_FUNCTIONAL_OF_OUT = {
    "aten.max.out": "aten.max.other",
    "aten.min.out": "aten.min.other",
    "aten.xlogy.OutTensor": "aten.xlogy.Tensor",
    "aten.xlogy.OutScalar_Self": "aten.xlogy.Scalar_Self",
    "aten.xlogy.OutScalar_Other": "aten.xlogy.Scalar_Other",
}
# Ops that give two results, or whose overload with out= takes other arguments than its twin.
_OWN_OUT = frozenset(
    """
    _to_copy full_like log_sigmoid_forward native_dropout ones_like scalar_tensor zeros_like
    """.split()
)

_BASES_BY_KIND: dict[OpKind, str] = {
    "elementwise": """
        __and__ __lshift__ __or__ __rshift__ __xor__ _prelu_kernel _prelu_kernel_backward _to_copy
        abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and
        bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp
        clamp_max clamp_min copysign cos cosh deg2rad div elu elu_backward eq erf erfc exp exp2
        expm1 fill float_power floor floor_divide fmax fmin fmod frac gcd ge gelu gelu_backward glu
        gt hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
        hardswish_backward hardtanh hardtanh_backward heaviside hypot isfinite isinf isnan isneginf
        isposinf lcm ldexp le leaky_relu leaky_relu_backward lerp log log10 log1p log2
        log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not
        logical_or logical_xor logit logit_backward lt masked_fill maximum minimum mish
        mish_backward mul nan_to_num native_dropout_backward ne neg positive pow prelu rad2deg
        reciprocal relu relu6 remainder round rrelu_with_noise_backward rsqrt rsub selu sgn sigmoid
        sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus softplus_backward
        softshrink softshrink_backward special_entr special_xlog1py sqrt square sub tan tanh
        tanh_backward threshold threshold_backward true_divide trunc where xlogy zero
    """,
    "reduction": """
        _cdist_forward _log_softmax _log_softmax_backward_data _logcumsumexp _safe_softmax _softmax
        _softmax_backward_data all amax amin aminmax any argmax argmin binary_cross_entropy
        binary_cross_entropy_backward binary_cross_entropy_with_logits bincount count_nonzero
        cummax cummin cumprod cumsum dist dot histc huber_loss huber_loss_backward kthvalue l1_loss
        linalg_vector_norm logcumsumexp logsumexp max mean median min mode mse_loss
        mse_loss_backward nanmean nanmedian nansum nll_loss2d_backward nll_loss2d_forward
        nll_loss_backward nll_loss_forward norm prod smooth_l1_loss smooth_l1_loss_backward
        soft_margin_loss soft_margin_loss_backward sort std std_mean sum sum_to_size topk trace
        trapezoid var var_mean vdot
    """,
    "matmul": """
        _addmm_activation _grouped_mm _int_mm _linalg_det _linalg_eigh _linalg_solve_ex
        _linalg_svd _scaled_grouped_mm _scaled_mm _trilinear addbmm addmm addmv addr baddbmm bmm
        einsum ger inner kron linalg_lu_factor_ex linear linear_backward matmul mm mkldnn_linear
        mv outer tensordot
    """,
    "convolution": """
        _convolution _slow_conv2d_backward _slow_conv2d_forward conv1d conv2d conv3d
        conv_depthwise3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
        convolution_backward convolution_overrideable cudnn_convolution
        cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose
        miopen_convolution mkldnn_convolution slow_conv3d slow_conv3d_forward
        slow_conv_transpose2d slow_conv_transpose3d thnn_conv2d
    """,
    "attention": """
        _efficient_attention_backward _efficient_attention_forward _flash_attention_backward
        _flash_attention_forward _fused_sdp_choice _native_multi_head_attention
        _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_fused_attention_overrideable _transform_bias_rescale_qkv
        _transformer_encoder_layer_fwd _triton_multi_head_attention _triton_scaled_dot_attention
        scaled_dot_product_attention
    """,
    "normalization": """
        _batch_norm_impl_index _fused_rms_norm _fused_rms_norm_backward _native_batch_norm_legit
        _native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm
        batch_norm_backward batch_norm_backward_elemt batch_norm_backward_reduce
        batch_norm_elemt batch_norm_gather_stats batch_norm_stats cudnn_batch_norm
        cudnn_batch_norm_backward group_norm instance_norm layer_norm native_batch_norm
        native_batch_norm_backward native_group_norm native_group_norm_backward
        native_layer_norm native_layer_norm_backward renorm rms_norm _weight_norm_interface
        _weight_norm_interface_backward
    """,
    "view": """
        _conj _neg_view _reshape_alias _unsafe_view alias as_strided chunk conj diagonal expand
        expand_as flatten movedim narrow numpy_T permute reshape select slice split
        split_with_sizes squeeze swapaxes swapdims t transpose unbind unflatten unfold unsqueeze
        view view_as view_as_complex view_as_real _test_serialization_subcmul imag adjoint mT mH
    """,
    "metadata": """
        _assert_async _assert_scalar _assert_tensor_metadata _backward
        _has_compatible_shallow_copy_type _has_same_storage_numel _version data detach dim
        is_complex is_conj is_contiguous is_floating_point is_leaf is_neg is_pinned is_same_size
        is_set_to is_signed lift lift_fresh numel output_nr promote_types requires_grad
        result_type retain_grad set set_data size storage_offset stride sym_constrain_range
        sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset
        sym_stride resize resize_as record_stream
    """,
    "copy": """
        _copy_from _fft_c2c _pack_padded_sequence _pad_circular cat clone concat constant_pad_nd
        contiguous copy column_stack dstack expand_copy flip fliplr flipud hstack
        lift_fresh_copy native_channel_shuffle pad permute_copy pixel_shuffle pixel_unshuffle
        reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave
        replication_pad1d replication_pad2d replication_pad3d roll rot90 slice_copy stack t_copy
        tile transpose_copy tril triu view_copy vstack channel_shuffle _chunk_cat split_copy
        split_with_sizes_copy unbind_copy block_diag
    """,
    "indexing": """
        _embedding_bag _embedding_bag_backward _embedding_bag_forward_only _index_put_impl
        _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate
        as_strided_scatter bucketize diagonal_backward diagonal_scatter embedding
        embedding_backward embedding_dense_backward embedding_renorm gather gather_backward
        grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d index index_add index_copy
        index_fill index_put index_reduce index_select index_select_backward masked_scatter
        max_pool1d_with_indices max_pool2d_with_indices max_pool2d_with_indices_backward
        max_pool3d_with_indices max_pool3d_with_indices_backward put scatter scatter_add
        scatter_reduce searchsorted select_backward select_scatter slice_backward slice_scatter
        take take_along_dim unfold_backward upsample_bicubic2d upsample_bilinear2d
        upsample_bilinear2d_backward upsample_linear1d upsample_nearest1d upsample_nearest2d
        upsample_nearest2d_backward upsample_nearest3d upsample_trilinear3d
        _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact2d
        adaptive_avg_pool2d _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool2d_backward
        avg_pool3d col2im im2col one_hot
    """,
    "factory": """
        _efficientzerotensor arange bartlett_window blackman_window empty empty_like
        empty_permuted empty_strided eye from_file full full_like hamming_window hann_window
        linspace logspace new_empty new_empty_strided new_full new_ones new_zeros ones ones_like
        scalar_tensor tril_indices triu_indices vander zeros zeros_like
    """,
    "random": """
        _fused_dropout _sample_dirichlet _standard_gamma alpha_dropout bernoulli binomial cauchy
        dropout exponential feature_dropout geometric log_normal multinomial native_dropout
        normal normal_functional poisson rand rand_like randint randint_like randn randn_like
        randperm random rrelu rrelu_with_noise rrelu_with_noise_functional uniform
    """,
    "host-sync": """
        _is_all_true _is_any_true _local_scalar_dense _unique _unique2 allclose item equal
        masked_select nonzero nonzero_static unique_consecutive unique_dim is_nonzero
        _nested_tensor_from_mask
    """,
    "optimizer": """
        _amp_foreach_non_finite_check_and_unscale _amp_update_scale _fused_adagrad _fused_adam
        _fused_adamw _fused_sgd
    """,
}

_KIND_OF_BASE: dict[str, OpKind] = {
    **dict.fromkeys(REASONS, "elementwise"),
    **{base: kind for kind, bases in _BASES_BY_KIND.items() for base in bases.split()},
}

# Overloads whose work differs from that of their name.
_KIND_OF_OVERLOAD: dict[str, OpKind] = {
    "aten.max.other": "elementwise",
    "aten.min.other": "elementwise",
    "aten.where.default": "host-sync",  # torch.where(condition) is nonzero
    "aten.normal.Tensor_float": "random",
    "aten.repeat_interleave.Tensor": "host-sync",  # the output's size depends on values
    "aten.view.dtype": "view",
}


_ADDED: set[str] = set()  # overloads from outside that are elementwise


def mark_elementwise(op: str, added: bool) -> None:
    """Call an overload from outside elementwise, or no longer."""
    if added:
        _ADDED.add(op)
    else:
        _ADDED.discard(op)


def is_added(op: str) -> bool:
    """Whether an overload was called elementwise from outside."""
    return op in _ADDED


def _split(op: str) -> tuple[str, str, str]:
    """Namespace, base name and overload of a full overload name."""
    namespace, _, rest = op.partition(".")
    base, _, overload = rest.partition(".")
    return namespace, base, overload


def is_inplace(op: str) -> bool:
    """Whether the overload writes its first argument (``aten.add_.Tensor``)."""
    _, base, _ = _split(op)
    return base in _DUNDER_INPLACE or (base.endswith("_") and not base.endswith("__"))


def out_keyword(op: str) -> str:
    """The keyword by which the overload is given the tensor it writes (``aten.add.out``), or ""."""
    _, base, overload = _split(op)
    if op in _ADDED or base in _OWN_OUT:
        return ""
    if op in _FUNCTIONAL_OF_OUT:
        return "out"
    if overload == "grad_input" or op == "aten.huber_loss_backward.out":
        return "grad_input"
    return "out" if overload in ("out", "out_mode") or overload.endswith("_out") else ""


def written_argument(node: OpNode) -> Argument:
    """What an elementwise op writes in place: its first argument, the one of out=, or None."""
    if is_inplace(node.op):
        return node.args[0]
    keyword = out_keyword(node.op)
    return dict(node.kwargs).get(keyword) if keyword else None


def functional_name(op: str) -> str:
    """The overload that computes the same without writing: itself unless in-place or out=."""
    namespace, base, overload = _split(op)
    if op in _FUNCTIONAL_OF_OUT:
        return _FUNCTIONAL_OF_OUT[op]
    if out_keyword(op):
        if overload == "out":
            overload = "Tensor" if base in _OUT_OF_TENSOR else "default"
        elif overload == "out_mode":
            overload = "Tensor_mode"
        else:
            overload = overload.removesuffix("_out") if overload != "grad_input" else "default"
        return ".".join((namespace, base, overload))
    if not is_inplace(op):
        return op
    if op in _FUNCTIONAL:
        return _FUNCTIONAL[op]
    functional = _DUNDER_INPLACE.get(base, base[:-1])
    return ".".join(part for part in (namespace, functional, overload) if part)


def classify(op: str, *, pointwise_tag: bool = False, reduction_tag: bool = False) -> OpKind:
    """The kind of an op by overload name; torch's own tags decide for unknown ones."""
    name = functional_name(op)
    if name in _ADDED:
        return "elementwise"
    if name in _KIND_OF_OVERLOAD:
        return _KIND_OF_OVERLOAD[name]
    namespace, base, _ = _split(name)
    if namespace == "aten":
        if base.startswith("_foreach_"):
            return "optimizer"
        if base in _KIND_OF_BASE:
            return _KIND_OF_BASE[base]
    if pointwise_tag:
        return "elementwise"
    if reduction_tag:
        return "reduction"
    return "other"
